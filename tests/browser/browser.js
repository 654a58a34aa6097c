// Opens each page in a headless Chromium at six sizes. Ends with 1 at the first page that scrolls
// sideways, writes to the console, requests anything, violates a rule of axe-core, has text below 10
// px, a table or a picture that is cut without a sign of it, or does not answer the keyboard.
'use strict';
const fs = require('fs');
const path = require('path');
const puppeteer = require('puppeteer-core');
const axe = fs.readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

const SIZES = [
  { name: 'wide', width: 1280, height: 900 },
  { name: 'half', width: 800, height: 900 },
  { name: 'narrow', width: 400, height: 844 },
  { name: 'phone', width: 390, height: 844 },
  { name: 'dark', width: 1280, height: 900, dark: true },
  { name: 'print', width: 1280, height: 900, print: true },
];

const wrong = [];
const expect = (holds, words) => {
  if (!holds) wrong.push(words);
};

// Tab reaches devices, Enter pins one's guest everywhere, Esc clears; a guest's name in the address
// pins it; the filter hides rows.
const keyboard = async (page, what) => {
  const count = (selector) => page.evaluate((s) => document.querySelectorAll(s).length, selector);
  const guest = await page.evaluate(() => document.querySelector('tr[data-name]')?.dataset.name);
  let order = [];
  for (let at = 0; at < 40; at += 1) {
    await page.keyboard.press('Tab');
    order.push(await page.evaluate(() => {
      const all = Array.from(document.querySelectorAll('*'));
      return all.indexOf(document.activeElement);
    }));
  }
  order = order.slice(0, order.findIndex((place, at) => at > 0 && place < order[at - 1]) >>> 0);
  expect(order.length > 3, what + ': Tab reaches ' + order.length + ' elements in their order');
  if (guest === undefined) return;
  await page.evaluate(() => document.querySelector('.t[data-g]').focus());
  await page.keyboard.press('Enter');
  expect(await count('tr.on') > 0, what + ': Enter on a device marks no row');
  expect((await page.evaluate(() => document.getElementById('info').textContent)).includes('pinned'), what + ': Enter pins nothing');
  await page.keyboard.press('Escape');
  expect(await count('.on') === 0, what + ': Esc leaves something marked');
  await page.evaluate((name) => { location.hash = '#guest=' + encodeURIComponent(name); }, guest);
  await page.waitForFunction(() => document.querySelector('tr.on') !== null, { timeout: 5000 });
  await page.keyboard.press('Escape');
  await page.evaluate(() => document.querySelector('#guests .key').focus());
  await page.keyboard.press(' ');
  expect(await count('tr.on') > 0, what + ': Space on a guest\'s letter marks no row');
  await page.keyboard.press('Escape');
  await page.type('#filter', guest);
  expect(await count('#guests tbody tr:not([hidden])') === 1, what + ': the filter');
  expect(await count('#devices tbody tr[hidden]') > 0, what + ': the filter hides no device');
  const shown = await page.evaluate(() => document.querySelector('tr[data-name] bdi').textContent);
  expect(shown === guest, what + ': the DOM says ' + shown + ' for ' + guest);
};

// No text is below 10 px as it is seen, tables are cut nowhere, and what scrolls sideways says so.
const legible = async (page, what) => {
  const found = await page.evaluate(() => {
    const all = (selector) => Array.from(document.querySelectorAll(selector));
    const svg = document.querySelector('figure svg');
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    const size = (element) => parseFloat(getComputedStyle(element).fontSize) * (svg.contains(element) ? scale : 1);
    const has = (element) => Array.from(element.childNodes).some((node) => node.nodeType === 3 && node.data.trim() !== '');
    const seen = (element) => element.getClientRects().length > 0;
    const texts = all('body *').filter((element) => has(element) && seen(element));
    const small = texts.filter((element) => size(element) < 9.99).map((element) => element.textContent.slice(0, 40));
    const scrolls = (part) => part.scrollWidth > part.clientWidth + 1;
    const unsaid = all('.wide,pre').filter((part) => scrolls(part) !== part.classList.contains('more'));
    const tables = all('.wide').filter((part) => part.querySelector('table.sift') && scrolls(part));
    // Its first cells keep their words in one line where they are no cards.
    const broken = all('table.devices td.keep').filter((cell) =>
      getComputedStyle(cell).display === 'table-cell' && cell.getClientRects()[0].height > 0 &&
      getComputedStyle(cell).whiteSpace !== 'nowrap');
    const name = (part) => part.getAttribute('aria-label');
    const picture = svg.closest('.wide');
    const hint = seen(document.querySelector('.narrow'));
    return { small, unsaid: unsaid.map(name), tables: tables.map(name), broken: broken.length, hint, cut: scrolls(picture) };
  });
  expect(found.small.length === 0, what + ': below 10 px: ' + found.small.slice(0, 5).join(' | '));
  expect(found.unsaid.length === 0, what + ': no sign that it scrolls: ' + found.unsaid.join(', '));
  expect(found.tables.length === 0, what + ': tables are cut: ' + found.tables.join(', '));
  expect(found.broken === 0, what + ': ' + found.broken + ' addresses may break');
  expect(found.hint === found.cut, what + ': the picture is cut: ' + found.cut + ', and the hint: ' + found.hint);
};

const judge = async (browser, file, out) => {
  for (const size of SIZES) {
    const what = path.basename(file) + ' ' + size.name;
    const page = await browser.newPage();
    page.on('console', (message) => expect(false, what + ': console: ' + message.text()));
    page.on('pageerror', (error) => expect(false, what + ': ' + error.message));
    page.on('dialog', (dialog) => { expect(false, what + ': a dialog'); dialog.dismiss(); });
    const own = 'file://' + file;
    page.on('request', (request) => expect(request.url() === own, what + ': requests ' + request.url()));
    await page.setViewport({ width: size.width, height: size.height });
    await page.emulateMediaType(size.print ? 'print' : 'screen');
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: size.dark ? 'dark' : 'light' }]);
    await page.goto(own);
    const [wide, room] = await page.evaluate(() => [document.scrollingElement.scrollWidth, innerWidth]);
    expect(wide <= room, what + ': ' + wide + ' px wide on ' + room);
    const answers = await page.evaluate(() => Array.from(document.querySelectorAll('#answers dd'))
      .map((answer) => answer.textContent.trim()));
    const asked = await page.evaluate(() => document.querySelector('tr[data-name]') ? 4 : 2);
    expect(answers.length >= asked && answers.every((answer) => answer !== ''), what + ': an answer is empty');
    if (!size.print) await legible(page, what);
    const shot = path.join(out, path.basename(file, '.html') + '-' + size.name + '.png');
    await page.screenshot({ path: shot, fullPage: true });
    expect(fs.statSync(shot).size > 10000, what + ': an empty picture');
    if (!size.print) {
      await page.evaluate(axe);
      const found = await page.evaluate(() => window.axe.run());
      for (const one of found.violations) {
        expect(false, what + ': axe ' + one.id + ': ' + one.nodes[0].html.slice(0, 200) + '\n' + one.nodes[0].failureSummary);
      }
    }
    if (size.name === 'wide') await keyboard(page, what);
    await page.close();
  }
};

(async () => {
  const [out, ...files] = process.argv.slice(2);
  const browser = await puppeteer.launch({
    executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--host-rules=MAP * ~NOTFOUND'],
  });
  for (const file of files) await judge(browser, path.resolve(file), out);
  await browser.close();
  if (wrong.length > 0) {
    console.error(wrong.join('\n'));
    process.exit(1);
  }
  console.log(files.length + ' pages at ' + SIZES.length + ' sizes: nothing wrong');
})();
