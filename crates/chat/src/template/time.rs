//! `strftime`, for templates that tell the model the date.

/// Formats a time in UTC, in seconds since 1970. Unknown directives stay as they are.
pub(super) fn strftime(format: &str, unix_seconds: i64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] =
        ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let days = unix_seconds.div_euclid(86_400);
    let second_of_day = unix_seconds.rem_euclid(86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) =
        (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let month_name = MONTHS[(month - 1) as usize];
    let day_name = DAYS[days.rem_euclid(7) as usize];
    let hour_12 = (hour + 11) % 12 + 1;

    let mut out = String::new();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // "%-d": no padding.
        let bare = chars.next_if_eq(&'-').is_some();
        let two = |n: i64| if bare { n.to_string() } else { format!("{n:02}") };
        match chars.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&two(year.rem_euclid(100))),
            Some('m') => out.push_str(&two(month)),
            Some('d') => out.push_str(&two(day)),
            Some('e') => out.push_str(&format!("{day:2}")),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('H') => out.push_str(&two(hour)),
            Some('I') => out.push_str(&two(hour_12)),
            Some('M') => out.push_str(&two(minute)),
            Some('S') => out.push_str(&two(second)),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('j') => {
                let nth = days - days_before(year) + 1;
                out.push_str(&if bare { nth.to_string() } else { format!("{nth:03}") });
            }
            Some('F') => out.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('%') => out.push('%'),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            other => {
                out.push('%');
                out.extend(bare.then_some('-'));
                out.extend(other);
            }
        }
    }
    out
}

/// Year, month and day of a day since 1970 (Hinnant, `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// Days from 1970 to a year's first.
fn days_before(year: i64) -> i64 {
    let y = year - 1;
    y * 365 + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) - 719_162
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn known_moments() {
        let leap = 1_709_210_096; // 2024-02-29 12:34:56, a Thursday
        assert_eq!(strftime("%d %b %Y", leap), "29 Feb 2024");
        assert_eq!(
            strftime("%A, %B %-d, %Y %H:%M:%S", leap),
            "Thursday, February 29, 2024 12:34:56"
        );
        assert_eq!(
            strftime("%F %T %p %I %j %a %y %e", leap),
            "2024-02-29 12:34:56 PM 12 060 Thu 24 29"
        );
        assert_eq!(strftime("%F %A", 0), "1970-01-01 Thursday");
        assert_eq!(strftime("%F %T", -1), "1969-12-31 23:59:59");
        assert_eq!(strftime("100%% %Q %-Q %", 0), "100% %Q %-Q %");
    }
}
