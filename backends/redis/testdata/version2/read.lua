#!lua flags=allow-oom
local call, su, sp = redis.call, struct.unpack, struct.pack
local byte, sub, find, char, floor = string.byte, string.sub, string.find, string.char, math.floor
-- This is what the run has done and may do: steps and bytes to answer. A field or a member
-- is one step, and a visit to the history is four. The limits keep the run short, because
-- the server's other clients wait for it.
local spent, size, maxSteps, maxBytes = 0, 0, 0, 0

-- These are the older writes in the hash of one row, by field of their cell.
local recentKey, recent

-- collect finds them among all fields of the row.
local function collect(key, all)
  recentKey, recent = key, {}
  for i = 1, #all, 2 do
    local name = all[i]
    if byte(name) == 72 then
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

-- older returns what a read of a cell's field must answer. That is the field itself. If the
-- read wants older writes too, it is the field and the members of the history. The read
-- wants at most lim (0: all) writes in the inverted range [th,tl] to [fh,fl]. older
-- returns nil when that is more than this run may do.
local function older(key, field, v, lim, th, tl, fh, fl)
  local pos, k = 2, byte(v)
  local f = k % 8
  if f < 4 then return v end
  if f % 2 == 1 then pos = pos + 12 + su('>I4', v, pos + 8) end
  if f % 4 >= 2 then pos = pos + 12 + su('>I4', v, pos + 8) end
  local h, l = su('>I4I4', v, pos)
  -- The newest write is the answer, or everything older is below the range.
  if lim == 1 and (h > th or h == th and l >= tl) then return v end
  if h > fh or h == fh and l >= fl then return v end
  local last
  if fl < 4294967295 then
    last = '(' .. field .. sp('>I4I4', fh, fl + 1)
  elseif fh < 4294967295 then
    last = '(' .. field .. sp('>I4I4', fh + 1, 0)
  else
    last = '(' .. field .. '\255\255\255\255\255\255\255\255\255'
  end
  local tag = find(key, '}', 1, true)
  local hkey = sub(key, 1, tag) .. 'h' .. sub(key, tag + 2)
  local r = members(hkey, '[' .. field .. sp('>I4I4', th, tl), last, lim)
  if not r then return nil end
  if k >= 8 then
    -- The row's hash holds some older writes itself.
    if key ~= recentKey then
      spent = spent + call('HLEN', key)
      if spent > maxSteps then return nil end
      collect(key, call('HGETALL', key))
    end
    local list = recent[field]
    if list then
      for i = 1, #list do
        r[#r + 1] = list[i]
        size = size + #list[i]
      end
    end
  end
  if not r[1] then return v end
  r[#r + 1] = v
  return r
end

-- This is the general read. A[p] is nc. Then come for each column its field and lim (-1:
-- no older writes), th, tl, fh, fl; and then nr history ranges, each lo, hi, lim. If nc is
-- -1, the read is of every field of the row, with one lim and range for all cells. It
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
        if want and not found then found = want[cell and byte(v) % 8 or 8] end
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
    if lim >= 0 then collect(key, all) end
    for i = 1, #all, 2 do
      local f, v = all[i], all[i + 1]
      local kind = byte(f)
      -- Kind H is an older write, which older() finds.
      if kind ~= 72 then
        if spent > maxSteps or size > maxBytes then return nil end
        size = size + #f + #v
        local cell = kind == 87
        if want and not found then found = want[cell and byte(v) % 8 or 8] end
        if cell and lim >= 0 then
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
-- The script reads rows. ARGV[1] says how many steps and bytes this run may take. Then come
-- the reads. A read is 0, key, field, th, tl: it finds the newest write of one cell at or
-- below a timestamp, with the cell's lock and mark. Nearly all reads are of this kind. Or
-- it is 1, key and a general read. The script answers as many rows as fit. If not even the
-- first one fits, it answers 1 in its place.
local A = cmsgpack.unpack(ARGV[1])
maxSteps, maxBytes = A[1], A[2]
local out, n = {}, 0
local p, na = 3, #A
while p <= na do
  local key, v = A[p + 1], nil
  if A[p] == 0 then
    local f = A[p + 2]
    v = call('HGET', key, f)
    spent = spent + 1
    if v then
      size = size + #v
      v = older(key, f, v, 1, A[p + 3], A[p + 4], 4294967295, 4294967295)
    end
    p = p + 5
  else
    local row, _, nextp = view(key, A, p + 2, nil)
    v, p = row, nextp
  end
  if v == nil then
    if n == 0 then out[1] = 1 end
    break
  end
  n = n + 1
  out[n] = v
  if spent > maxSteps or size > maxBytes then break end
end
return cmsgpack.pack(out)
