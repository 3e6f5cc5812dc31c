// A live report asks its own server for news; place, filters and choices stay as they are.
const EVERY = 3000;

function follow() {
  let version = null;
  const status = () => document.getElementById("live");
  const say = (text) => { status().textContent = text; };
  const ask = async () => {
    try {
      const answer = await fetch(`content.json${version === null ? "" : `?not=${version}`}`, { cache: "no-store" });
      if (answer.status === 200) {
        const news = await answer.json();
        version = news.version;
        if (news.error) say(`Not read: ${news.error}`);
        else take(news.content);
      }
      if (answer.ok && !status().textContent.startsWith("Not read")) {
        say(`Live, last change ${new Date(content.written * 1000).toISOString().slice(11, 19)} UTC`);
      }
    } catch {
      say("The server has ended; this is the last state.");
    }
    setTimeout(ask, EVERY);
  };
  ask();
}

function take(next) {
  const marker = [...document.querySelectorAll("section")].find((part) => part.getBoundingClientRect().bottom > 120);
  const before = marker ? marker.getBoundingClientRect().top : 0;
  const same = frame(content) === frame(next);
  const shown = content.runs[state.run].name;
  content = next;
  document.getElementById("live").textContent = "";
  if (same) {
    show();
  } else { // a run has joined, or gone
    state.run = Math.max(0, content.runs.findIndex((run) => run.name === shown));
    state.hidden.clear();
    build();
  }
  const place = marker && document.getElementById(marker.id);
  if (place) scrollBy(0, place.getBoundingClientRect().top - before);
}
