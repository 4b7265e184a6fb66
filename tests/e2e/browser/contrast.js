// Contrast of every text against the nearest opaque background, as WCAG computes it.
(() => {
  const parse = (colour) => {
    const parts = colour.match(/[\d.]+/g).map(Number);
    return parts.length < 4 ? [...parts, 1] : parts;
  };
  const luminance = (colour) => {
    const [red, green, blue] = colour.slice(0, 3).map((value) => {
      const part = value / 255;
      return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const background = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = parse(getComputedStyle(one).backgroundColor);
      if (colour[3] > 0.99) return colour;
    }
    return [255, 255, 255, 1];
  };
  const hasText = (element) =>
    [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  return [...document.querySelectorAll("body *")]
    .filter((element) => !element.closest("svg, .skip, thead") && hasText(element))
    .map((element) => {
      const text = luminance(parse(getComputedStyle(element).color));
      const behind = luminance(background(element));
      const ratio = (Math.max(text, behind) + 0.05) / (Math.min(text, behind) + 0.05);
      return { ratio, text: element.textContent.slice(0, 40), tag: element.className };
    });
})();
