// A page that was opened from a folder may not start a worker, in which the search runs: run it in a hidden frame.
"use strict";

class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    const inside = (this.inside = frame.contentWindow);
    inside.document.open();
    inside.document.write("<body></body>");
    inside.document.close();

    const load = (source) =>
      new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.src = source;
        script.onload = resolve;
        script.onerror = reject;
        inside.document.body.append(script);
      });
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    inside.importScripts = async (...sources) => {
      for (const source of sources) await load(source);
    };
    this.ready = load(url);
  }

  postMessage(data) {
    this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
  }
}

if (location.protocol === "file:") window.Worker = window.IFrameWorker = IFrameWorker;
