// The site's search runs in a worker, and browsers start none for pages from the disk. There a hidden frame stands in.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      this.scope.postMessage = (data) => {
        const message = new MessageEvent("message", {data});
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      };
      const script = this.scope.document.createElement("script");
      this.ready = new Promise((loaded) => (script.onload = loaded));
      script.src = new URL(url, location.href);
      this.scope.document.body.append(script);
    }
    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new this.scope.MessageEvent("message", {data})));
    }
    terminate() {
      this.scope.frameElement.remove();
    }
  };
}
