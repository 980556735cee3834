// Exchanges the code behind # for a session, once. The code leaves the address, and so the browser's history, at once.
"use strict";

async function enter() {
  const said = document.getElementById("said");
  const [, code, place] = /^#?([^/]*)(.*)$/.exec(location.hash);
  history.replaceState(null, "", "/enter");
  const answer = await fetch("/enter", { method: "POST", body: JSON.stringify({ code }) });
  if (!answer.ok) {
    said.textContent = await answer.text();
    return;
  }
  localStorage.setItem("orch-session", (await answer.json()).token);
  location.replace(place ? `/#${place}` : "/");
}

enter().catch((error) => {
  document.getElementById("said").textContent = `The server does not answer: ${error.message}`;
});
