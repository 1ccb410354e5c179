/** Line icons on a grid of 24. */

const PATHS = {
  plus: "M12 5v14M5 12h14",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM20 20l-4-4",
  menu: "M4 7h16M4 12h16M4 17h16",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  again: "M20 11a8 8 0 1 0-2 6M20 4v7h-7",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13",
  more: "M5 11.500a.5.5 0 1 0 0 1 .5.5 0 0 0 0-1zM12 11.500a.5.5 0 1 0 0 1 .5.5 0 0 0 0-1zM19 11.500a.5.5 0 1 0 0 1 .5.5 0 0 0 0-1z",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  down: "M6 10l6 6 6-6",
  clip: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.3 3.3 0 0 1 4.7 4.7L9.5 17a1.7 1.7 0 0 1-2.4-2.4L15 7",
  close: "M6 6l12 12M18 6L6 18",
  play: "M8 5v14l11-7z",
  cube: "M12 3l8 4.5v9L12 21l-8-4.5v-9zM12 12l8-4.5M12 12v9M12 12L4 7.5",
  pulse: "M3 12h4l3-8 4 16 3-8h4",
  gear: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.500a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5zM9 14.500a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5z",
  tool: "M14 7a4 4 0 0 1 5-5l-3 3 3 3 3-3a4 4 0 0 1-5 5L8 19a2.1 2.1 0 0 1-3-3z",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  sliders: "M6 4v6M6 14v6M12 4v2M12 10v10M18 4v10M18 18v2M4 12h4M10 8h4M16 16h4",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Logo() {
  return (
    <svg class="logo" viewBox="0 0 512 512" aria-hidden="true">
      <rect width="512" height="512" rx="116" class="logo-back" />
      <path class="logo-flame" d="M256 84c44 58 66 92 66 128a66 66 0 0 1-132 0c0-36 22-70 66-128z" />
      <path class="logo-body" d="M216 304h80l-22 124a18 18 0 0 1-36 0z" />
    </svg>
  );
}

interface IconButtonProps {
  icon: IconName;
  label: string;
  onClick: () => void;
  disabled?: boolean;
  pressed?: boolean;
  class?: string;
}

export function IconButton({ icon, label, onClick, disabled, pressed, class: name }: IconButtonProps) {
  return (
    <button
      type="button"
      class={`icon-button ${name ?? ""}`}
      aria-label={label}
      title={label}
      disabled={disabled ?? false}
      aria-pressed={pressed}
      onClick={onClick}
    >
      <Icon name={icon} />
    </button>
  );
}
