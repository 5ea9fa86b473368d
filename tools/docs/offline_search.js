// The beginning of search.js, which the theme reads in place of search.json on pages opened from disk.
// Browsers start no worker there, so the search's worker runs in a hidden frame of the same origin.
window.Worker = class {
  #frame = document.createElement("iframe");
  #waiting = [];

  constructor(url) {
    const script = document.createElement("script");
    script.src = new URL(url, document.baseURI);
    this.#frame.hidden = true;
    this.#frame.srcdoc = script.outerHTML;
    this.#frame.onload = () => this.#start();
    document.body.append(this.#frame);
  }

  #start() {
    const worker = this.#frame.contentWindow;
    if (!worker.onmessage) {
      this.onerror?.(new Event("error"));
      return;
    }
    worker.postMessage = (data) => setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
    this.#waiting.forEach((data) => worker.onmessage({ data }));
    this.#waiting = null;
  }

  postMessage(data) {
    const own = structuredClone(data);
    if (this.#waiting) this.#waiting.push(own);
    else setTimeout(() => this.#frame.contentWindow?.onmessage({ data: own }));
  }

  terminate() {
    this.#frame.remove();
  }
};
