// Before anything is painted, so that a chosen theme does not flash.
(() => {
  try {
    const { theme } = JSON.parse(localStorage.getItem("taper.settings") ?? "{}");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Without storage the system's theme holds.
  }
})();
