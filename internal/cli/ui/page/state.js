// The rows of the cluster, as the server sends them.

// The states of a pod on the page, in the order of the legend.
export const states = [
  { name: "plugged", text: "plugged" },
  { name: "waiting", text: "waiting" },
  { name: "leaving", text: "leaving" },
  { name: "lost", text: "lost: its node does not answer" },
  { name: "failing", text: "failing" },
];

// byText compares texts with numbers in them: web-9 is before web-10.
export const byText = new Intl.Collator("en", { numeric: true }).compare;

// stateOf returns the name of the state of a pod's row.
export function stateOf(pod) {
  switch (pod.state) {
    case "Attached": return "plugged";
    case "Releasing": return pod.reason === "WaitingForNode" ? "lost" : "leaving";
    case "Failing": return "failing";
  }
  return "waiting";
}

// addressesOf returns the addresses of a pod without prefix lengths.
export function addressesOf(pod) {
  return pod.interfaces.flatMap((i) => i.addresses.map((a) => a.split("/")[0]));
}

// Node is a node with the pods on it. A pod keeps its place until it is gone, and a later one
// gets the first free place.
class Node {
  constructor(name) {
    this.name = name;
    this.row = null; // null as long as Fairlead's object of the node is not known
    this.places = []; // pods, with null for a free place
    this.free = [];
    this.pods = 0;
  }

  add(pod) {
    this.free.sort((a, b) => b - a);
    pod.place = this.free.length > 0 ? this.free.pop() : this.places.length;
    this.places[pod.place] = pod;
    this.pods++;
  }

  remove(pod) {
    this.places[pod.place] = null;
    this.free.push(pod.place);
    this.pods--;
    while (this.places.length > 0 && this.places.at(-1) === null) this.places.pop();
    this.free = this.free.filter((p) => p < this.places.length);
  }
}

// State has all rows. dirty names the panels to draw, dirtyNodes the nodes.
export class State {
  constructor(info) {
    this.info = info;
    this.nodes = new Map();
    this.pods = new Map();
    this.rows = { pool: new Map(), network: new Map(), portpool: new Map(), event: new Map(), resource: new Map() };
    this.counts = Object.fromEntries(states.map((s) => [s.name, 0]));
    this.dirty = new Set(["node", "pod", "pool", "network", "portpool", "event", "resource"]);
    this.dirtyNodes = new Set();
    this.changed = new Set(); // namespace/name of pods
  }

  // apply applies the changes of a message.
  apply(changes) {
    for (const c of changes) {
      this.dirty.add(c.kind);
      if (c.kind === "pod") this.#pod(c.id, c.row);
      else if (c.kind === "node") this.#node(c.id, c.row);
      else if (!c.row) this.rows[c.kind]?.delete(c.id);
      else this.rows[c.kind]?.set(c.id, { id: c.id, ...c.row });
      if (c.kind === "event" && c.row) this.changed.add(`${c.row.namespace}/${c.row.name}`);
    }
  }

  // sort puts the pods of each node in the order of their names. It is called once, when all
  // rows are there.
  sort() {
    for (const node of this.nodes.values()) {
      const pods = node.places.filter((p) => p).sort((a, b) => byText(a.full, b.full));
      node.places = pods;
      node.free = [];
      pods.forEach((p, i) => { p.place = i; });
    }
  }

  #nodeOf(name) {
    let node = this.nodes.get(name);
    if (!node) this.nodes.set(name, node = new Node(name));
    this.dirtyNodes.add(name);
    return node;
  }

  #node(name, row) {
    const node = this.#nodeOf(name);
    node.row = row ?? null;
    if (!row && node.pods === 0) this.nodes.delete(name);
  }

  #pod(id, row) {
    const old = this.pods.get(id);
    if (old) this.counts[old.mark]--;
    if (old && (!row || row.node !== old.node)) {
      const node = this.#nodeOf(old.node);
      node.remove(old);
      if (node.pods === 0 && !node.row) this.nodes.delete(old.node);
      this.pods.delete(id);
    }
    if (row) {
      const pod = this.pods.get(id) ?? { id };
      Object.assign(pod, { reason: "", message: "" }, row);
      pod.full = `${row.namespace}/${row.name}`;
      pod.mark = stateOf(row);
      this.counts[pod.mark]++;
      if (!this.pods.has(id)) {
        this.pods.set(id, pod);
        this.#nodeOf(row.node).add(pod);
      } else this.dirtyNodes.add(row.node);
      this.changed.add(pod.full);
    } else if (old) this.changed.add(old.full);
  }

  // find returns the pods that a text describes.
  find(text) {
    const words = text.toLowerCase().split(/\s+/).filter((w) => w);
    if (words.length === 0) return null;
    const out = new Set();
    for (const pod of this.pods.values()) {
      const all = [pod.full, pod.node, ...addressesOf(pod), ...pod.interfaces.map((i) => i.network), pod.mark].join(" ").toLowerCase();
      if (words.every((w) => all.includes(w))) out.add(pod);
    }
    return out;
  }

  // holder returns the pod with an address, undefined if there is none.
  holder(address) {
    for (const pod of this.pods.values()) {
      if (addressesOf(pod).includes(address)) return pod;
    }
    return undefined;
  }
}
