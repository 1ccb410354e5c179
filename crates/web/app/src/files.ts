/** Files that a reader brings. */

import type { Attachment } from "./types";

const MOST_TEXT = 1 << 20;
const MOST_IMAGE = 8 << 20;

/** A file as text or, for a model that sees, as a picture; an error says why it is neither. */
export async function readFile(file: File, images: boolean): Promise<Attachment> {
  if (/^image\/(png|jpeg|webp|gif)$/.test(file.type)) {
    if (!images) throw new Error(`${file.name}: this model does not see pictures`);
    if (file.size > MOST_IMAGE) throw new Error(`${file.name}: pictures may have 8 MiB`);
    return { kind: "image", name: file.name, data: await dataUrl(file) };
  }
  if (file.size > MOST_TEXT) throw new Error(`${file.name}: files may have 1 MiB`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new Error("binary");
    return { kind: "text", name: file.name, data: text };
  } catch {
    throw new Error(`${file.name} is not a text file`);
  }
}

function dataUrl(file: File): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read`));
    reader.readAsDataURL(file);
  });
}
