// Browsers start no workers for pages that are files, so the search runs in a frame instead. `self.postMessage` in the
// worker reaches whoever made it, and the other way round.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(script) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      this.frame = frame;
      inside.postMessage = (data) => this.tell(data);
      inside.importScripts = (...names) =>
        Promise.all(names.map((name) => this.load(new URL(name, script).href)));
      this.load(String(script)).then(() => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
    }

    load(address) {
      return new Promise((done, failed) => {
        const element = this.frame.contentDocument.createElement("script");
        element.src = address;
        element.onload = done;
        element.onerror = failed;
        this.frame.contentDocument.head.append(element);
      });
    }

    tell(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      if (!this.ready) return void this.waiting.push(data);
      const inside = this.frame.contentWindow;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
