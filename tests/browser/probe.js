// Functions that the tests call in a page: contrast (WCAG 2.1, 1.4.3) of every text, and elements that overflow to the right.
(() => {
  const numbers = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ratio = (a, b) => {
    const [light, dark] = [luminance(a), luminance(b)].sort((p, q) => q - p);
    return (light + 0.05) / (dark + 0.05);
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const texts = () => {
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = new Set();
    while (walk.nextNode()) {
      const element = walk.currentNode.parentElement;
      const box = element.getBoundingClientRect();
      if (walk.currentNode.data.trim() && box.width > 2 && box.height > 2 && !element.closest("title, desc")) found.add(element);
    }
    return [...found];
  };
  window.faint = (least) => texts().flatMap((element) => {
    const style = getComputedStyle(element);
    const ink = numbers(element.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const found = ratio(ink, ground(element));
    return found < least ? [`${found.toFixed(2)} ${element.tagName} ${element.textContent.trim().slice(0, 40)}`] : [];
  });
  window.sticking = () => [...document.querySelectorAll("body *")].filter((element) => {
    const box = element.getBoundingClientRect();
    return box.width && box.right > innerWidth + 1 && !element.closest(".scroll, pre, svg, .hide, .skip, thead");
  }).map((element) => `${element.tagName}.${element.className} ${Math.round(element.getBoundingClientRect().right)}`);
  window.unreachable = () => [...document.querySelectorAll(".scroll, pre")]
    .filter((element) => element.scrollWidth > element.clientWidth && element.tabIndex < 0).map((element) => element.textContent);
  window.texts = () => texts().length;
})();
