/* Browsers start no worker for a page that was opened from disk, and the search needs one: here it works in a hidden frame
   of the same page instead. Pages that come from a server keep the browser's own workers. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const load = address => new Promise((resolve, reject) => {
        const script = frame.contentDocument.createElement("script");
        script.src = new URL(address, document.baseURI);
        script.onload = resolve;
        script.onerror = reject;
        frame.contentDocument.body.append(script);
      });
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve());
      inside.postMessage = data => {
        const answer = new MessageEvent("message", { data });
        this.dispatchEvent(answer);
        if (this.onmessage) this.onmessage(answer);
      };
      const loaded = load(url);
      this.postMessage = data =>
        loaded.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
      this.terminate = () => frame.remove();
    }
  };
}
