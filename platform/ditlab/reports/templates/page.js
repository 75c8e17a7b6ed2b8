"use strict";
(() => {
  const all = (root, selector) => [...root.querySelectorAll(selector)];
  const number = (value) => {
    if (value === null || value === undefined) return "none";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(3).replace(/\.?0+e/, "e");
    return value.toLocaleString("en", {maximumSignificantDigits: size >= 1000 ? Math.ceil(Math.log10(size + 1)) : 4});
  };

  // Theme: as the system, light or dark; kept where the browser lets a page keep anything.
  const THEMES = ["system", "light", "dark"];
  const button = document.getElementById("theme");
  const stored = () => { try { return localStorage.getItem("ditlab-theme"); } catch { return null; } };
  const setTheme = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme === "system" ? "as the system" : theme}`;
    button.value = theme;
  };
  setTheme(THEMES.includes(stored()) ? stored() : "system");
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(button.value) + 1) % THEMES.length];
    setTheme(next);
    try { localStorage.setItem("ditlab-theme", next); } catch { /* a page in a sandbox keeps nothing */ }
  });

  // Charts: the values at the pointer, or at the cursor that the arrow keys move.
  const nearest = (steps, step) => {
    let low = 0, high = steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle; else high = middle;
    }
    return Math.abs(steps[low] - step) <= Math.abs(steps[high] - step) ? low : high;
  };
  const prepareChart = (figure) => {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const plot = figure.querySelector(".plot"), svg = plot.querySelector("svg");
    const values = all(figure, ".legend b"), at = figure.querySelector(".at");
    const steps = [...new Set(data.curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
    const place = ([low, high, begin, end], value, log) => log
      ? begin + (end - begin) * Math.log(value / low) / Math.log(high / low)
      : begin + (end - begin) * (value - low) / (high - low);
    const lastValues = values.map((value) => value.textContent), lastStep = at.textContent;
    let cursor = null, chosen = steps.length - 1;
    const draw = () => {
      const step = steps[chosen];
      if (!cursor) {
        cursor = document.createElementNS(svg.namespaceURI, "g");
        cursor.setAttribute("class", "cursor");
        for (const kind of ["path", ...data.curves.map(() => "circle")]) {
          cursor.append(document.createElementNS(svg.namespaceURI, kind));
        }
        svg.append(cursor);
      }
      cursor.firstChild.setAttribute("d", `M${place(data.x, step).toFixed(1)} ${data.y[3]}V${data.y[2]}`);
      data.curves.forEach((curve, index) => {
        const near = nearest(curve.steps, step), value = curve.values[near];
        const dot = cursor.children[index + 1];
        dot.setAttribute("class", `dot ${curve.role}`);
        dot.setAttribute("r", "4");
        dot.setAttribute("cx", place(data.x, curve.steps[near]).toFixed(1));
        dot.setAttribute("cy", Math.min(Math.max(place(data.y, value, data.log), data.y[3]), data.y[2]).toFixed(1));
        const range = curve.low ? ` (${number(curve.low[near])} to ${number(curve.high[near])})` : "";
        const own = curve.steps[near] === step ? "" : ` at ${number(curve.steps[near])}`;
        values[index].textContent = number(value) + range + own;
      });
      at.textContent = `step ${number(step)}`;
    };
    const clear = () => {  // back to the last values
      if (!cursor) return;
      chosen = steps.length - 1;
      values.forEach((value, index) => { value.textContent = lastValues[index]; });
      at.textContent = lastStep;
      cursor.remove();
      cursor = null;
    };
    plot.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), unit = svg.viewBox.baseVal.width / box.width;
      const [low, high, begin, end] = data.x;
      const x = (event.clientX - box.left) * unit;
      chosen = nearest(steps, low + (high - low) * (x - begin) / (end - begin));
      draw();
    });
    plot.addEventListener("pointerleave", clear);
    plot.addEventListener("blur", clear);
    plot.addEventListener("focus", () => { if (plot.matches(":focus-visible")) draw(); });
    plot.addEventListener("keydown", (event) => {
      const moves = {ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity};
      if (!(event.key in moves)) return;
      event.preventDefault();
      chosen = Math.min(Math.max(chosen + moves[event.key], 0), steps.length - 1);
      draw();
    });
  };

  // Samples over steps.
  const showSlide = (figure, index) => {
    const slides = all(figure, ".slide"), range = figure.querySelector("input[type=range]");
    slides.forEach((slide, own) => slide.classList.toggle("current", own === index));
    if (!range) return;
    range.value = index;
    range.setAttribute("aria-valuetext", slides[index].dataset.label);
    figure.querySelector(".slider output").textContent = slides[index].dataset.label;
  };
  const prepareSlides = (figure) => {
    const range = figure.querySelector("input[type=range]");
    if (range) range.addEventListener("input", () => showSlide(figure, Number(range.value)));
  };

  const prepare = (root) => {
    all(root, ".chart").forEach(prepareChart);
    all(root, ".slides").forEach(prepareSlides);
  };
  prepare(document);

  // A page that is served live: sections that changed are replaced, and what was open, chosen or focused stays so.
  const address = document.body.dataset.update;
  if (!address) return;
  const live = document.getElementById("live");
  const say = (text, state) => { live.textContent = text; live.className = state; };
  const stateOf = (section) => ({
    open: all(section, "details[open]").map((each) => each.id).filter(Boolean),
    scrolled: all(section, ".scroll, .events, pre").map((each) => [each.scrollLeft, each.scrollTop]),
    focus: section.contains(document.activeElement)
      ? all(section, "*").filter((each) => each.tabIndex >= 0).indexOf(document.activeElement) : -1,
    slides: all(section, ".slides").map((figure) => {
      const slides = all(figure, ".slide"), index = slides.findIndex((slide) => slide.classList.contains("current"));
      return [figure.id, index === slides.length - 1 ? null : slides[index].dataset.label];
    }),
  });
  const restore = (section, state) => {
    state.open.forEach((id) => { const each = document.getElementById(id); if (each) each.open = true; });
    all(section, ".scroll, .events, pre").forEach((each, index) => {
      if (state.scrolled[index]) [each.scrollLeft, each.scrollTop] = state.scrolled[index];
    });
    for (const [id, label] of state.slides) {
      const figure = label === null ? null : document.getElementById(id);
      const index = figure ? all(figure, ".slide").findIndex((slide) => slide.dataset.label === label) : -1;
      if (index >= 0) showSlide(figure, index);
    }
    if (state.focus >= 0) all(section, "*").filter((each) => each.tabIndex >= 0)[state.focus]?.focus();
  };
  const replace = ({key, html, digest}, order) => {
    let section = document.getElementById(key);
    if (!section) {
      section = document.createElement("section");
      section.id = key;
      const next = order.slice(order.indexOf(key) + 1).map((each) => document.getElementById(each)).find(Boolean);
      document.querySelector("main").insertBefore(section, next ?? null);
    }
    const state = stateOf(section);
    section.innerHTML = html;
    section.dataset.digest = digest;
    prepare(section);
    restore(section, state);
  };
  const update = async () => {
    const have = all(document, "[data-digest]").map((each) => `${each.id}:${each.dataset.digest}`).join(",");
    const answer = await fetch(`${address}?have=${encodeURIComponent(have)}`, {cache: "no-store"});
    if (!answer.ok) throw new Error(String(answer.status));
    const found = await answer.json();
    all(document, "main > section").filter((each) => !found.order.includes(each.id)).forEach((each) => each.remove());
    found.sections.forEach((each) => replace(each, found.order));
    if (document.title !== found.title) document.title = found.title;
    say(found.state, found.kind);
  };
  const poll = async () => {
    try {
      if (!document.hidden) await update();
    } catch {
      say("ditlab watch does not answer: the page stays as it was", "lost");
    }
    setTimeout(poll, Number(document.body.dataset.interval));
  };
  setTimeout(poll, 200);
})();
