// The page's elements. Everything that comes from the gateway becomes text, never markup: engines choose their names.

export const byId = (id) => document.getElementById(id);

/** Sets text only where it differs, so that selections and screen readers are left alone. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A new element with attributes and children; strings become text. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/**
 * Keeps the children of `parent` equal to `items`: one a key, changed in place, in the items' order.
 * While the pointer or the focus is among them the order is held: what one is about to press does not move away.
 */
export function keepList(parent, items, keyOf, create, update) {
  const present = (parent.kept ??= new Map());
  const keys = new Set(items.map(keyOf));
  for (const [key, element] of present) {
    if (!keys.has(key)) {
      element.remove();
      present.delete(key);
    }
  }
  const isHeld = parent.matches(":hover") || parent.contains(document.activeElement);
  let after = null;
  for (const item of items) {
    const key = keyOf(item);
    let element = present.get(key);
    const isNew = !element;
    if (isNew) present.set(key, (element = create(item)));
    update(element, item);
    const next = after ? after.nextSibling : parent.firstChild;
    if (element !== next && (isNew || !isHeld)) parent.insertBefore(element, next);
    after = element;
  }
}
