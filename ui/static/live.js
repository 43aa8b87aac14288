// Asks for the page again each second, and puts what differs in place. The page works without it.
"use strict";
(() => {
  const live = document.querySelector("[data-live]");
  const button = document.getElementById("live");
  if (!live || !button) return;
  let on = true;
  let failed = 0;
  const say = () => { button.textContent = (on ? "pause" : "go on") + (failed > 2 ? " (no answer)" : ""); };
  button.addEventListener("click", () => { on = !on; say(); });
  button.hidden = false;
  document.documentElement.dataset.live = "0";

  // Elements stay where nothing changed, so a click, the focus and a selection survive.
  const put = (old, now) => {
    if (old.isEqualNode(now)) return;
    if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName) {
      old.replaceWith(document.importNode(now, true));
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      old.nodeValue = now.nodeValue;
      return;
    }
    for (const name of old.getAttributeNames()) if (!now.hasAttribute(name)) old.removeAttribute(name);
    for (const name of now.getAttributeNames()) if (old.getAttribute(name) !== now.getAttribute(name)) old.setAttribute(name, now.getAttribute(name));
    const before = [...old.childNodes];
    const after = [...now.childNodes];
    after.forEach((node, i) => {
      if (i < before.length) put(before[i], node);
      else old.append(document.importNode(node, true));
    });
    before.slice(after.length).forEach((node) => node.remove());
  };

  const refresh = async () => {
    if (on && !document.hidden) {
      try {
        const answer = await fetch(location.href, { cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(10000) });
        if (answer.redirected) { location.reload(); return; } // the login is over
        if (!answer.ok) throw new Error(answer.status);
        const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-live]");
        if (next && on) put(live, next);
        failed = 0;
        document.documentElement.dataset.live = String(Number(document.documentElement.dataset.live) + 1);
      } catch {
        failed++;
      }
      say();
    }
    setTimeout(refresh, 1000);
  };
  setTimeout(refresh, 1000);
})();
