'use strict';
(() => {
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
  const info = document.getElementById('info');
  const tools = document.getElementById('tools');
  const filter = document.getElementById('filter');
  const picture = document.querySelector('figure svg');
  let pinned = null;

  // What an element of the page is about: a guest by its letter, a device by its address.
  const about = (element) => {
    const hit = element instanceof Element && element.closest('[data-g],[data-d]');
    if (!hit) return null;
    const guest = hit.getAttribute('data-g');
    const device = hit.getAttribute('data-d');
    return { guest, device, words: words(hit) };
  };

  // The words for the line below: those of the picture, or those of a row's first cell.
  const words = (element) => {
    const title = element.querySelector(':scope > title');
    if (title) return title.textContent;
    const device = element.getAttribute('data-d');
    const tile = device && document.getElementById('dev-' + device);
    return tile ? words(tile) : element.getAttribute('data-name') || '';
  };

  // Marks all that is of the same guest, or the same device where no guest has it.
  const mark = (thing) => {
    all('.on').forEach((element) => element.classList.remove('on'));
    document.body.classList.toggle('dim', Boolean(thing && thing.guest));
    if (!thing) {
      info.textContent = '';
      return;
    }
    all('[data-g],[data-d]').forEach((element) => {
      const own = element.getAttribute('data-g');
      const same = thing.guest !== null && own === thing.guest;
      const one = thing.device !== null && element.getAttribute('data-d') === thing.device;
      if (same || one) element.classList.add('on');
    });
    info.textContent = thing.words + (pinned === thing ? ' (pinned; Esc clears)' : '');
  };

  const show = (event) => {
    const title = event.target instanceof Element && event.target.closest('g');
    const thing = about(event.target);
    if (pinned) return;
    if (thing) mark(thing);
    else {
      mark(null);
      if (title) info.textContent = words(title);
    }
  };

  const pin = (thing) => {
    pinned = thing;
    mark(thing);
  };

  const clear = () => {
    pinned = null;
    filter.value = '';
    sift();
    mark(null);
    if (location.hash.startsWith('#guest=')) history.replaceState(null, '', location.pathname + location.search);
  };

  // Shows only rows with the text.
  const sift = () => {
    const wanted = filter.value.trim().toLowerCase();
    all('table.sift tbody tr').forEach((row) => {
      row.hidden = wanted !== '' && !row.textContent.toLowerCase().includes(wanted);
    });
  };

  // #guest=NAME pins a guest.
  const open = () => {
    const match = /^#guest=(.*)$/.exec(location.hash);
    if (!match) return;
    let name = match[1];
    try {
      name = decodeURIComponent(name);
    } catch {
      // A name with a bare percent sign is taken as it is.
    }
    const row = all('tr[data-name]').find((one) => one.getAttribute('data-name') === name);
    if (row) {
      pin(about(row));
      document.getElementById('picture').scrollIntoView();
    } else {
      info.textContent = 'no guest is called ' + name;
    }
  };

  // Distances: the devices of a cell, and their paths.
  const cell = (event) => {
    const field = event.target instanceof Element && event.target.closest('table.matrix td');
    if (!field || pinned) return;
    const row = field.parentElement.querySelector('th');
    const head = field.closest('table').querySelectorAll('thead th')[field.cellIndex];
    info.textContent = row.textContent + ' to ' + head.textContent + ': ' + field.textContent +
      '; ' + row.dataset.path + ' and ' + head.dataset.path;
  };

  // Where a part scrolls sideways, its edges say that it goes on.
  const edges = (part) => {
    const right = part.scrollWidth - part.clientWidth - part.scrollLeft;
    part.classList.toggle('more', right > 1);
    part.classList.toggle('less', part.scrollLeft > 1);
  };
  const parts = all('.wide,pre');
  const measure = () => parts.forEach(edges);

  all('.t', picture).forEach((tile) => {
    // Its name is its title.
    tile.setAttribute('tabindex', '0');
    tile.setAttribute('role', 'button');
  });
  all('#guests .key').forEach((key) => {
    key.setAttribute('tabindex', '0');
    key.setAttribute('role', 'button');
    key.setAttribute('aria-label', key.textContent + ': mark this guest everywhere');
  });
  document.addEventListener('pointerover', show);
  document.addEventListener('focusin', show);
  document.addEventListener('pointerover', cell);
  document.addEventListener('click', (event) => {
    const thing = about(event.target);
    if (thing) pin(thing);
  });
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') clear();
    const thing = event.target instanceof Element && event.target.matches('[role=button]') && about(event.target);
    if (thing && (event.key === 'Enter' || event.key === ' ')) {
      event.preventDefault();
      pin(thing);
    }
  });
  filter.addEventListener('input', sift);
  window.addEventListener('hashchange', open);
  parts.forEach((part) => part.addEventListener('scroll', () => edges(part), { passive: true }));
  window.addEventListener('resize', measure);
  document.getElementById('fit').addEventListener('change', measure);
  tools.hidden = false;
  document.getElementById('pointing').hidden = false;
  info.hidden = false;
  measure();
  open();
})();
