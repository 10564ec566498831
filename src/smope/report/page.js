// The page reads without this. It adds a button that changes between dark and light.
const root = document.documentElement, button = document.getElementById("theme");
button.hidden = false;
button.onclick = () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
};
