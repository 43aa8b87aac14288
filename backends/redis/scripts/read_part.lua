-- This is what the run has done and may do: steps and bytes to answer. A field or a member
-- is one step, and a visit to the history is four. The limits keep the run short, because
-- the server's other clients wait for it.
local spent, size, maxSteps, maxBytes = 0, 0, 0, 0

-- flags is those of a cell. In version 2 they were its first byte.
local function flags(v)
  local k = byte(v)
  if k == 255 then return byte(v, 2) end
  return k
end

-- These are the older writes that version 2 put into the hash of one row, by field of their
-- cell.
local recentKey, recent

-- collect finds them among all fields of the row. Their names end in a timestamp, those of
-- this version in one byte.
local function collect(key, all)
  recentKey, recent = key, {}
  for i = 1, #all, 2 do
    local name = all[i]
    local at = byte(name) == 72 and find(name, ':', 2, true)
    if at and #name - at - tonumber(sub(name, 2, at - 1)) == 8 then
      local f = 'W' .. sub(name, 2, -9)
      local list = recent[f]
      if not list then
        list = {}
        recent[f] = list
      end
      list[#list + 1] = f .. sub(name, -8) .. all[i + 1]
    end
  end
end

-- members returns the members of a range of a row's history, at most lim (0: all),
-- or nil when that is more than this run may do.
local function members(hkey, first, last, lim)
  spent = spent + 4
  if lim == 1 then
    local r = call('ZRANGEBYLEX', hkey, first, last, 'LIMIT', 0, 1)
    if r[1] then size = size + #r[1] end
    return r
  end
  local out, n, chunk = {}, 0, 4
  while true do
    if lim > 0 and chunk > lim - n then chunk = lim - n end
    local r = call('ZRANGEBYLEX', hkey, first, last, 'LIMIT', 0, chunk)
    local got, before = #r, size
    for i = 1, got do
      n = n + 1
      out[n] = r[i]
      size = size + #r[i]
    end
    spent = spent + got
    if got < chunk or n == lim then return out end
    if spent > maxSteps or size > maxBytes then return nil end
    first = '(' .. r[got]
    if size - before > 65536 * got then chunk = 1 elseif chunk < 512 then chunk = 2 * chunk end
  end
end

-- historic adds to r what older needs of a cell's history, and returns it, or nil when that is more than
-- this run may do.
local function historic(key, field, r, lim, before, th, tl, fh, fl)
  local tag = find(key, '}', 1, true)
  local hkey = sub(key, 1, tag) .. 'h' .. sub(key, tag + 2)
  spent = spent + 1
  if call('EXISTS', hkey) == 0 then return r end
  local to, last = sp('>I4I4', th, tl), nil
  if fl < 4294967295 then
    last = '(' .. field .. sp('>I4I4', fh, fl + 1)
  elseif fh < 4294967295 then
    last = '(' .. field .. sp('>I4I4', fh + 1, 0)
  else
    last = '(' .. field .. '\255\255\255\255\255\255\255\255\255'
  end
  local singles = members(hkey, '[' .. field .. to, last, lim)
  if not singles then return nil end
  for i = 1, #singles do r[#r + 1] = singles[i] end
  -- Version 2 knew no chunks. They have only older writes than the hash. A chunk stands at its oldest
  -- write. So the newest one that is wanted lies in the first chunk that stands at or behind it, and
  -- the oldest in the first one behind that. No chunk goes on with a byte of 255 behind its timestamp.
  if not before then
    local c, from = 'C' .. sub(field, 2), sp('>I4I4', fh, fl) .. '\255'
    local chunks = members(hkey, '[' .. c .. to, '(' .. c .. from, lim)
    if not chunks then return nil end
    for i = 1, #chunks do r[#r + 1] = chunks[i] end
    if #chunks < lim or lim == 0 then
      chunks = members(hkey, '[' .. c .. from, '(' .. c .. '\255\255\255\255\255\255\255\255\255', 1)
      r[#r + 1] = chunks[1]
    end
  end
  return r
end

-- older returns what a read of a cell's field must answer. That is the field itself. If the
-- read wants older writes too, it is the field and the members of the history. The read
-- wants at most lim (0: all) writes in the inverted range [th,tl] to [fh,fl]. older
-- returns nil when that is more than this run may do.
local function older(key, field, v, lim, th, tl, fh, fl)
  local pos, k, before = 2, byte(v), true
  if k == 255 then pos, k, before = 3, byte(v, 2), false end
  local f = k % 8
  if f < 4 then return v end
  if f % 2 == 1 then pos = pos + 12 + su('>I4', v, pos + 8) end
  if f % 4 >= 2 then pos = pos + 12 + su('>I4', v, pos + 8) end
  local h, l = su('>I4I4', v, pos)
  -- The newest write is the answer, or everything older is below the range.
  if lim == 1 and (h > th or h == th and l >= tl) then return v end
  if h > fh or h == fh and l >= fl then return v end
  -- n is how many of the newest lim writes are known. The field's own is one, if it is not too new.
  local r, n = {}, 0
  if h > th or h == th and l >= tl then n = 1 end
  if k >= 8 and not before then
    -- The row's hash holds some older writes itself, the last one is the newest. All of the history
    -- is older than they.
    k = floor(k / 8)
    local names, name = {}, 'H' .. sub(field, 2)
    for i = 1, k do names[i] = name .. char(i - 1) end
    local vs = call('HMGET', key, unpack(names))
    spent = spent + k
    for i = k, 1, -1 do
      h, l = su('>I4I4', vs[i])
      if h > th or h == th and l >= tl then
        n = n + 1
        size = size + #vs[i]
        r[#r + 1] = field .. vs[i]
        -- That is all, or everything older is below the range.
        if n == lim or h > fh or h == fh and l >= fl then
          r[#r + 1] = v
          return r
        end
      end
    end
  elseif k >= 8 then
    if key ~= recentKey then
      spent = spent + call('HLEN', key)
      if spent > maxSteps then return nil end
      collect(key, call('HGETALL', key))
    end
    local list = recent[field]
    if list then
      for i = 1, #list do
        r[i] = list[i]
        size = size + #list[i]
      end
    end
  end
  r = historic(key, field, r, lim, before, th, tl, fh, fl)
  if not r then return nil end
  if not r[1] then return v end
  r[#r + 1] = v
  return r
end

-- This is the general read. A[p] is nc. Then come for each column its field and lim (-1:
-- no older writes), th, tl, fh, fl; and then nr history ranges, each lo, hi, lim. If nc is
-- -1, the read is of every field of the row, with one lim and range for all cells. If it is -2,
-- the fields come as they are, older writes too: for reads of all versions, whose history
-- comes by ranges, which costs no visit for each column. It
-- answers the list of views. For a scan it also tells whether any of the row's fields is
-- of a wanted kind: want[flags] for cells, want[8] for notifications. It returns nil when
-- the row is more than this run may do.
local function view(key, A, p, want)
  local row, n, found = {}, 0, false
  local nc = A[p]
  p = p + 1
  if nc >= 0 then
    for _ = 1, nc do
      if spent > maxSteps or size > maxBytes then return nil end
      local f, lim = A[p], A[p + 1]
      local v = call('HGET', key, f)
      spent = spent + 1
      if v then
        size = size + #v
        local cell = byte(f) == 87
        if want and not found then found = want[cell and flags(v) % 8 or 8] end
        if cell and lim >= 0 then
          v = older(key, f, v, lim, A[p + 2], A[p + 3], A[p + 4], A[p + 5])
          if not v then return nil end
        end
      end
      n = n + 1
      row[n] = v
      p = p + 6
    end
  else
    local lim, th, tl, fh, fl = A[p], A[p + 1], A[p + 2], A[p + 3], A[p + 4]
    p = p + 5
    spent = spent + call('HLEN', key)
    if spent > maxSteps then return nil end
    local all = call('HGETALL', key)
    local raw = nc == -2
    local old = lim >= 0 and not raw
    for i = 1, #all, 2 do
      local f, v = all[i], all[i + 1]
      local kind = byte(f)
      if old and kind == 87 and byte(v) ~= 255 and byte(v) >= 8 then
        collect(key, all)
        old = false
      end
      -- Kind H is an older write, which older() finds.
      if raw or kind ~= 72 then
        if spent > maxSteps or size > maxBytes then return nil end
        size = size + #f + #v
        local cell = kind == 87
        if want and not found then found = want[cell and flags(v) % 8 or 8] end
        if cell and lim >= 0 and not raw then
          v = older(key, f, v, lim, th, tl, fh, fl)
          if not v then return nil end
        end
        row[n + 1] = f
        row[n + 2] = v
        n = n + 2
      end
    end
  end
  local nr = A[p]
  p = p + 1
  if nr > 0 then
    local tag = find(key, '}', 1, true)
    local hkey = sub(key, 1, tag) .. 'h' .. sub(key, tag + 2)
    for _ = 1, nr do
      if spent > maxSteps or size > maxBytes then return nil end
      local r = members(hkey, A[p], A[p + 1], A[p + 2])
      if not r then return nil end
      if r[1] then found = true end
      n = n + 1
      row[n] = r
      p = p + 3
    end
  end
  return row, found, p
end
