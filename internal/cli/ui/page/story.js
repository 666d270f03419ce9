// The story of a pod: where it stands, its life on a time line, and the steps of
// "fairlead explain pod".

import { clock, element, span } from "./dom.js";

const panel = document.getElementById("story");

export class Story {
  constructor() {
    this.full = null; // namespace/name of the pod that is shown
    this.back = null; // gets the focus when the story is closed
    this.asked = 0;
  }

  // open shows the story of a pod.
  open(namespace, name, back) {
    this.back = back;
    this.full = `${namespace}/${name}`;
    this.where = { namespace, name };
    panel.replaceChildren(this.#head(), element("p", { className: "quiet" }, "Loading."));
    panel.hidden = false;
    document.body.classList.add("telling");
    panel.focus();
    this.refresh();
  }

  close() {
    if (this.full === null) return false;
    this.full = null;
    panel.hidden = true;
    document.body.classList.remove("telling");
    this.back?.focus();
    return true;
  }

  // refresh asks for the story again.
  async refresh() {
    const asked = ++this.asked;
    const answer = await fetch(`story?${new URLSearchParams(this.where)}`).catch(() => null);
    const story = answer?.ok ? await answer.json() : null;
    if (asked !== this.asked || this.full === null) return;
    const focused = panel.contains(document.activeElement) && document.activeElement !== panel;
    panel.replaceChildren(this.#head(), ...(story ? tell(story)
      : [element("p", {}, answer?.status === 404 ? "The pod is gone, and has given its addresses back." : "fairlead ui does not answer.")]));
    if (focused) panel.querySelector("button").focus();
  }

  #head() {
    return element("div", { className: "head" },
      element("h2", { id: "story-title" }, element("span", { className: "quiet" }, `${this.where.namespace}/`), this.where.name),
      element("button", { type: "button", className: "close", "aria-label": "Close", onclick: () => this.close() }, "×"));
  }
}

const names = { Done: "done", Waiting: "waits", Failed: "failed", NotNeeded: "not needed" };

// tell returns the elements of a story.
function tell(story) {
  const e = story.explained;
  const bad = e.steps.some((s) => s.mark === "Failed");
  const out = [e.waitsFor
    ? element("div", { className: `verdict ${bad ? "failed" : "waits"}` }, element("p", {}, `Waits for ${e.waitsFor}.`), element("p", { className: "quiet" }, `Look at: ${e.lookAt}`))
    : element("div", { className: "verdict done" }, element("p", {}, sentence(e.summary.replace(/^waits for nothing: /, ""))))];
  // Most times are whole seconds, so that the difference is one of whole seconds.
  const second = (m) => Math.floor(Date.parse(m.at) / 1000);
  out.push(element("h3", {}, "Time line"), element("ol", { className: "line-of-time" }, ...story.moments.map((m, i) => {
    const after = second(m) - second(story.moments[0]);
    return element("li", { className: m.warning ? "warning" : m.event ? "event" : "step" },
      element("time", { dateTime: m.at }, clock(m.at)), element("span", { className: "quiet after" }, i === 0 || after <= 0 ? "" : `+${span(after)}`),
      element("b", {}, m.what), element("span", { className: "text" }, m.text ?? ""));
  })));
  out.push(element("h3", {}, "Steps"), element("ol", { className: "steps" }, ...e.steps.map((s) =>
    element("li", { className: `mark-${s.mark}` }, element("span", { className: "mark", title: names[s.mark] ?? s.mark, role: "img", "aria-label": names[s.mark] ?? s.mark }),
      element("b", {}, s.step), element("span", { className: "text" }, s.text)))));
  for (const f of e.former) {
    out.push(element("p", { className: "quiet" }, `A former pod of this name: ${f.attachment}, ${f.state}${f.reason ? `, ${f.reason}` : ""}.`));
  }
  return out;
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
