// Live updates and conveniences. Every page works without it: it only changes times, and blocks that the server rendered.
"use strict";
(() => {
  const root = document.documentElement, body = document.body;
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => within.querySelectorAll(selector);
  root.classList.add("js");

  // ── Times: local, with UTC on hover ──
  const own = new Intl.DateTimeFormat(undefined, {
    year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const sameDay = (at, now) => at.toDateString() === now.toDateString();
  const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

  function spell(seconds) {
    const at = UNITS.findIndex(([, size]) => seconds >= size);
    if (at < 0) return "0s";
    const [unit, size] = UNITS[at], next = UNITS[at + 1];
    const rest = next ? Math.floor((seconds % size) / next[1]) : 0;
    return `${Math.floor(seconds / size)}${unit}${rest ? `${rest}${next[0]}` : ""}`;
  }

  function age(kind, at, now) {
    const seconds = Math.floor(Math.abs(now - at) / 1000);
    if (kind === "for") return now > at ? spell(seconds) : "0s";
    if (kind === "in") return now < at ? `in ${spell(seconds)}` : "now";
    if (now < at && seconds > 2) return `in ${spell(seconds)}`;
    return seconds < 1 || now < at ? "just now" : `${spell(seconds)} ago`;
  }

  function tell(time, now) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) return;
    const local = own.format(at), kind = time.dataset.ago;
    const says = kind ? age(kind, at, now) : sameDay(at, now) ? clock.format(at) : local;
    const title = `${local} · ${time.dateTime.slice(0, 19).replace("T", " ")} UTC`;
    if (time.textContent !== says) time.textContent = says;
    if (time.title !== title) time.title = title;
  }

  const localise = (within) => { const now = new Date(); for (const each of $$("time[datetime]", within)) tell(each, now); };
  localise(document);
  setInterval(() => {
    if (document.hidden) return;
    const now = new Date();
    for (const each of $$("time[data-ago]")) tell(each, now);
  }, 1000);

  // ── Morph: makes an element equal to a newly rendered one, and keeps focus and input ──
  const touched = new WeakSet(); // fields that the user has edited
  addEventListener("input", (event) => touched.add(event.target), true);
  addEventListener("reset", (event) => { for (const each of event.target.elements) touched.delete(each); }, true);
  const FIELDS = new Set(["INPUT", "TEXTAREA", "SELECT"]);
  const keyOf = (node) => (node.nodeType === 1 ? node.id || node.getAttribute("data-key") : null);

  function morph(old, next) {
    if (old.nodeType !== 1) {
      if (old.nodeValue !== next.nodeValue) old.nodeValue = next.nodeValue;
      return;
    }
    if (old.hasAttribute("data-keep")) return;
    const kept = FIELDS.has(old.nodeName) && (touched.has(old) || old === document.activeElement);
    const own = old.nodeName === "DETAILS" || old.nodeName === "DIALOG" ? "open" : null;
    for (const { name } of [...old.attributes]) if (name !== own && !next.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of next.attributes) {
      if (name !== own && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    if (kept) return;
    if (old.nodeName === "TEXTAREA" && old.value !== next.value) old.value = next.value;
    if (old.nodeName === "INPUT") {
      if (old.type === "checkbox" || old.type === "radio") old.checked = next.checked;
      else if (old.value !== next.value) old.value = next.value;
    }
    morphChildren(old, next);
  }

  function morphChildren(old, next) {
    const wanted = new Set(), known = new Map();
    for (const each of next.children) if (keyOf(each)) wanted.add(keyOf(each));
    for (const each of [...old.children]) {
      const key = keyOf(each);
      if (!key) continue;
      if (wanted.has(key)) known.set(key, each);
      else each.remove();
    }
    let here = old.firstChild;
    for (const each of [...next.childNodes]) {
      const key = keyOf(each), twin = key ? known.get(key) : here;
      if (twin && twin.nodeName === each.nodeName && keyOf(twin) === key) {
        if (twin === here) here = here.nextSibling;
        else old.insertBefore(twin, here);
        morph(twin, each);
      } else {
        old.insertBefore(each, here);
      }
    }
    while (here) {
      const gone = here;
      here = here.nextSibling;
      gone.remove();
    }
  }

  // Selected rows stay, after the others, when their jobs leave the list: an action is taken on what was selected.
  function keepChosen(place, next) {
    let rows = $("tbody", next);
    if (!rows) { // the list is empty now: its table comes back for the selected rows
      if (!$('tbody input[name="id"]:checked', place)) return;
      const list = $(".list", place).cloneNode(true);
      rows = $("tbody", list);
      rows.replaceChildren();
      next.prepend(list);
    }
    const listed = new Set([...rows.children].map(keyOf));
    for (const box of $$('tbody input[name="id"]:checked', place)) {
      const row = box.closest("tr");
      if (!row || listed.has(keyOf(row))) continue;
      const kept = rows.appendChild(row.cloneNode(true));
      kept.classList.add("left");
      kept.title = "This job has left this page of the list. It stays here until you unselect it.";
    }
  }

  function replace(name, html) {
    const place = $(`[data-live="${CSS.escape(name)}"]`);
    if (!place) return;
    const next = document.createElement("div"), focused = document.activeElement;
    next.append(...new DOMParser().parseFromString(html, "text/html").body.childNodes);
    localise(next);
    keepChosen(place, next);
    morphChildren(place, next);
    if (focused && focused !== body && document.activeElement !== focused) {
      if (focused.isConnected) focused.focus({ preventScroll: true }); // it was moved
      else { place.tabIndex = -1; place.focus({ preventScroll: true }); } // it is gone: focus its block
    }
    for (const each of $$("[data-chosen]")) count(each);
  }

  // ── The stream ──
  const sign = $("#live"), pause = $("#pause"), trouble = $("#trouble");
  const HIDDEN_FOR = 30000, QUIET_FOR = 4000, SILENT_FOR = 40000, LONGEST = 10000;
  const fresh = new Map(); // the newest version of each block, until the next frame
  let stream = null, paused = false, over = false, tries = 0, retry = 0, hide = 0, worry = 0, silence = 0, frame = 0;

  function show(state, says) {
    sign.dataset.state = state;
    const text = $("[data-says]", sign);
    if (text.textContent !== says) text.textContent = says;
  }

  let said = "";
  function complain(says, { stale = false, reload = false } = {}) {
    root.classList.toggle("stale", stale);
    if (says === said) return;
    said = says;
    trouble.replaceChildren();
    if (!says) return;
    const line = trouble.appendChild(document.createElement("p"));
    line.append(says);
    if (reload) {
      const link = line.appendChild(document.createElement("a"));
      link.href = location.href;
      link.textContent = "Reload";
    }
  }

  function take(news) {
    if (news.gone) {
      over = true;
      close();
      show("over", "not live");
      complain(`${news.gone}.`, { stale: true, reload: true });
      return;
    }
    if ("away" in news) {
      const away = news.away;
      delete news.away;
      complain(away && `The store can't be read: ${away}. This page shows the last known state.`, { stale: Boolean(away) });
      show(away ? "away" : "live", away ? "store away" : "live");
    }
    for (const [name, html] of Object.entries(news)) fresh.set(name, html);
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      for (const [name, html] of fresh) replace(name, html);
      fresh.clear();
    });
  }

  function open() {
    if (stream || paused || over) return;
    clearTimeout(retry);
    stream = new EventSource(`${body.dataset.root}/live?at=${encodeURIComponent(body.dataset.liveAt)}`);
    stream.addEventListener("still", heard);
    stream.onmessage = (event) => {
      heard();
      tries = 0;
      clearTimeout(worry);
      worry = 0;
      if (sign.dataset.state !== "away") show("live", "live");
      take(JSON.parse(event.data));
    };
    stream.onerror = lost;
    heard();
  }

  // A line that is cut without a word, as when a laptop slept, raises no error.
  function heard() {
    clearTimeout(silence);
    silence = setTimeout(lost, SILENT_FOR);
  }

  function close() {
    stream?.close();
    stream = null;
    clearTimeout(retry);
    clearTimeout(silence);
    clearTimeout(worry);
    worry = 0;
  }

  function lost() {
    clearTimeout(silence);
    stream.close();
    stream = null;
    // A stream ends every 15 minutes, and reconnects at once: that is not worth a message.
    worry ||= setTimeout(() => {
      show("reconnecting", "reconnecting…");
      complain("The dashboard does not answer. This page shows the last known state.", { stale: true });
    }, QUIET_FOR);
    const wait = Math.min(500 * 2 ** tries++, LONGEST) * (0.75 + Math.random() / 2);
    retry = setTimeout(ask, wait);
  }

  // An EventSource does not say why it failed; an ordinary request does.
  async function ask() {
    const stop = new AbortController();
    try {
      const url = `${body.dataset.root}/live?at=${encodeURIComponent(body.dataset.liveAt)}`;
      const answer = await fetch(url, { signal: stop.signal, redirect: "manual", cache: "no-store" });
      stop.abort();
      if (answer.status === 401 || answer.status === 403 || answer.type === "opaqueredirect") {
        over = true;
        close();
        show("over", "signed out");
        complain("You are signed out.", { stale: true, reload: true });
        return;
      }
      if (!answer.ok) throw new Error(answer.statusText);
    } catch (error) {
      if (error.name !== "AbortError" && !paused) retry = setTimeout(ask, Math.min(500 * 2 ** tries++, LONGEST));
      return;
    }
    if (!document.hidden) open(); // else once the tab is visible
  }

  if (sign && body.dataset.liveAt !== undefined && $("[data-live]")) {
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.setAttribute("aria-pressed", String(paused));
      if (paused) { close(); complain(""); show("paused", "paused"); } else { show("connecting", "connecting…"); open(); }
    });
    document.addEventListener("visibilitychange", () => {
      clearTimeout(hide);
      if (document.hidden) hide = setTimeout(close, HIDDEN_FOR);
      else { localise(document); tries = 0; if (!stream) open(); }
    });
    addEventListener("pagehide", close);
    addEventListener("pageshow", (event) => { if (event.persisted) open(); });
    if (!document.hidden) open();
  } else {
    sign?.remove();
    pause?.remove();
  }

  // ── Forms: a confirmation before irreversible actions ──
  const dialog = $("#confirm");
  let asked = null; // the form that was confirmed
  addEventListener("submit", (event) => {
    const form = event.target, button = event.submitter;
    const sentence = button?.dataset.confirm ?? form.dataset.confirm;
    if (!sentence || asked === form) { asked = null; return; }
    event.preventDefault();
    const to = form.action;
    $("#confirm-says").textContent = sentence.replace("{n}", String(chosen(form).length));
    dialog.returnValue = "";
    dialog.onclose = () => {
      if (dialog.returnValue !== "yes") return;
      if (!form.isConnected || form.action !== to) return; // the page has changed: it may do the opposite now
      asked = form;
      form.requestSubmit(button?.isConnected ? button : undefined);
    };
    dialog.showModal();
  });

  // ── Tables with selection, copy buttons, keys ──
  const chosen = (form) => $$('input[name="id"]:checked', form);
  function count(place) {
    const form = place.closest("form");
    if (form) place.textContent = String(chosen(form).length);
  }
  addEventListener("change", (event) => {
    const form = event.target.form;
    if (!form) return;
    if (event.target.matches("[data-all]")) {
      for (const each of $$('input[name="id"]', form)) { each.checked = event.target.checked; touched.add(each); }
    }
    for (const each of $$("[data-chosen]", form)) count(each);
  });
  addEventListener("click", async (event) => {
    const button = event.target.closest?.("[data-copy]");
    if (!button) return;
    const label = (button.dataset.label ??= button.textContent);
    try { await navigator.clipboard.writeText(button.dataset.copy); button.textContent = "Copied"; }
    catch { button.textContent = "Not allowed"; }
    setTimeout(() => { button.textContent = label; }, 1500);
  });
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && event.target.matches?.("[data-search]")) event.target.blur();
    if (event.key !== "/" || event.target.closest?.("input, textarea, select, [contenteditable], dialog")) return;
    const field = $("[data-search]");
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  });
  // Not by scrollIntoView: Chromium would begin at this link when Tab is first pressed, and not at the top of the page.
  const nav = $(".top nav"), here = $(".top nav [aria-current]");
  if (here) nav.scrollLeft += here.getBoundingClientRect().left - nav.getBoundingClientRect().left - (nav.clientWidth - here.offsetWidth) / 2;
})();
