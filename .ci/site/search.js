/* The index takes a word that begins with - or + for an operator, and `--keyed` for an error. Here it is a word. */
(() => {
  const send = window.Worker.prototype.postMessage;
  window.Worker.prototype.postMessage = function (message, ...more) {
    const plain = (text) => text.replace(/(^|\s)[-+]+/g, "$1");
    return send.call(this, typeof message?.data === "string" ? {...message, data: plain(message.data)} : message, ...more);
  };
})();
