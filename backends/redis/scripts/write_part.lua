-- This is what the scripts that write have in common. The argument says until when the
-- request may be applied, the oracle's key if a group draws, the channel, and then
-- the groups; write.go and encode_write.go say how they are encoded. Timestamps travel and
-- are stored inverted (2^64-1-ts), 8 bytes, most significant first, so that the
-- newest version sorts first. They are compared as pairs of 32-bit halves: a Lua
-- number has 53 bits, and Lua compares strings by the server's locale.
--
-- After the first write nothing may raise an error, because Redis does not undo writes. So a group
-- looks at its rows before it writes, and one that meets a damaged row answers the row's number,
-- negative. If something raises an error all the same, such as a key of another kind, then the
-- oracle knows of the timestamps that were drawn: it stores them before the first one is used.
local A = cmsgpack.unpack(ARGV[1])
local t = call('TIME')
local now = t[1] * 1000 + floor(t[2] / 1000)
if A[1] > 0 and now > A[1] then return cmsgpack.pack({1, now}) end
local okey, channel = A[2], A[3]
local drew = false
if okey then
  local err = oracleLoad(okey, now)
  if err then return err end
else
  -- A later format leaves its version here. The oracle holds it too.
  local level = call('GET', sub(KEYS[1], 1, -2) .. 'l')
  if level and level ~= '3' then return redis.error_reply('FORMAT ' .. level) end
end
local out, no = {0, now}, 2

-- history is the key of a row's history. Most changes do not need it.
local function history(key)
  local tag = find(key, '}', 1, true)
  return sub(key, 1, tag) .. 'h' .. sub(key, tag + 2)
end

-- wide tells whether a row has so many fields that the older writes of its columns go
-- to the history one by one: a read of all its columns passes each field.
local wideKey, isWide
local function wide(key)
  if key ~= wideKey then wideKey, isWide = key, call('HLEN', key) > 256 end
  return isWide
end

-- recents is the first n of the fields for the older writes of a column.
local function recents(f, n)
  local names, h = {}, 'H' .. sub(f, 2)
  for j = 1, n do names[j] = h .. char(j - 1) end
  return names
end

-- addChunk puts entries, the newest first, into the history of a column as one member. Its
-- place is that of the oldest.
local function addChunk(key, f, entries)
  local n = #entries
  if n > 0 then call('ZADD', history(key), 0, 'C' .. sub(f, 2) .. sub(entries[n], 3, 10) .. table.concat(entries)) end
end

-- pack puts a column's n older writes among the fields into its history. The fields stay, and
-- the next writes take their places, which costs less than to remove them. A row that has become
-- wide shall lose them.
local function pack(key, f, n)
  local names, entries = recents(f, n), {}
  local vs = call('HMGET', key, unpack(names))
  for j = n, 1, -1 do
    local v = vs[j]
    if v then entries[#entries + 1] = sp('>I2', #v) .. v end
  end
  addChunk(key, f, entries)
  if wide(key) then call('HDEL', key, unpack(names)) end
end

-- These are the older writes that version 2 put into the hash of one row, as names and
-- values by field of their cell, and the cells.
local heldKey, held, cells

-- move puts those of a column into the row's history one by one, and tells how many
-- there were.
local function move(key, f)
  local list = held[f]
  if not list then return 0 end
  held[f] = nil
  local add, del, n = {}, {}, #list
  for j = 1, n, 2 do
    add[j] = 0
    add[j + 1] = f .. sub(list[j], -8) .. list[j + 1]
    del[(j + 1) / 2] = list[j]
  end
  call('ZADD', history(key), unpack(add))
  call('HDEL', key, unpack(del))
  return n / 2
end

-- unload moves the older writes that version 2 put into the hash, of a column and, in a wide
-- row, of others too, so that the hash is not read again for each. The fields A[from]
-- to A[to] are those that this mutation changes itself.
local function unload(key, f, from, to)
  if key ~= heldKey then
    heldKey, held, cells = key, {}, {}
    local all = call('HGETALL', key)
    for j = 1, #all, 2 do
      local name = all[j]
      local kind = byte(name)
      local at = kind == 72 and find(name, ':', 2, true)
      local n = at and tonumber(sub(name, 2, at - 1))
      -- The fields of version 2 end in a timestamp.
      if n and #name - at - n == 8 then
        local of = 'W' .. sub(name, 2, -9)
        local list = held[of]
        if not list then
          list = {}
          held[of] = list
        end
        list[#list + 1] = name
        list[#list + 1] = all[j + 1]
      elseif kind == 87 and (byte(all[j + 1]) or 255) ~= 255 then
        cells[name] = all[j + 1]
      end
    end
  end
  move(key, f)
  if not wide(key) then return end
  local own, left = {}, 1000
  for j = from, to do own[A[j]] = true end
  for of in pairs(held) do
    if left <= 0 then break end
    if not own[of] then
      left = left - move(key, of)
      local v = cells[of]
      if v then call('HSET', key, of, char(byte(v) % 8) .. sub(v, 2)) end
    end
  end
end

-- index puts a row into the index of its table, and the table into the set.
local function index(key)
  local tag = find(key, '}', 1, true)
  local slash = find(key, '/', tag, true)
  local name = sub(key, tag + 3, slash - 1)
  if call('ZADD', sub(key, 1, tag) .. 'i:' .. name, 0, sub(key, slash + 1)) == 1 then
    call('SADD', sub(key, 1, tag) .. 't', name)
  end
end

-- reserve stores that all that the run may draw was drawn: a timestamp for each group, and those
-- behind the groups.
local function reserve()
  if drew then return end
  drew = true
  local p, n, na = 4, 0, #A
  while p <= na and A[p] do
    n = n + 1
    p = A[p]
  end
  if p < na then n = n + A[p + 1] end
  local m, c = ms, ctr
  oracleTake(n)
  oracleSave()
  ms, ctr = m, c
end

-- take draws a timestamp and inverts it. If the timestamp is above the bound, it returns
-- nothing.
local function take(nah, nal)
  reserve()
  local h = 4294967295 - floor(ms / 16384)
  local l = 4294967295 - ((ms % 16384) * 262144 + ctr)
  oracleTake(1)
  if nah > 0 and (h < nah or h == nah and l < nal) then
    no = no + 1
    out[no] = 2
    return nil
  end
  return sp('>I4I4', h, l)
end

-- quick applies a group of n rows with one cell in each, where nothing but the newest
-- write changes. It judges the conditions of a prewrite at the inverted start timestamp
-- [sh,sl], and puts the write at the timestamp drawn. Most transactions are such groups.
-- A[p] and what follows are: sh, sl, then row key, field, value.
local fields, places, older = {}, {}, {}
local function quick(p, n, nah, nal)
  local sh, sl = A[p], A[p + 1]
  p = p + 2
  for m = 1, n do
    local v = call('HGET', A[p + 3 * m - 3], A[p + 3 * m - 2])
    fields[m] = v
    if v then
      local f, pos, bad = byte(v), 2, false
      if f == 255 then f, pos = byte(v, 2), 3 end
      f = f and f % 8 or 0
      local whole = f > 0
      if f % 2 == 1 then
        bad = true
      elseif f % 4 >= 2 then
        whole = #v >= pos + 11
        if whole then
          local h, l, n = su('>I4I4I4', v, pos)
          bad = h < sh or h == sh and l <= sl
          pos = pos + 12 + n
          whole = #v >= pos - 1
        end
      end
      if f >= 4 and not bad and whole then
        whole = #v >= pos + 7
        if whole then
          local h, l = su('>I4I4', v, pos)
          bad = h < sh or h == sh and l <= sl
        end
      end
      if not whole then
        no = no + 1
        out[no] = -m
        return
      end
      if bad then
        no = no + 1
        out[no] = {m, v}
        return
      end
      -- Where the write is, which the mark stands before.
      places[m] = pos
    end
  end
  local drawn = take(nah, nal)
  if not drawn then return end
  for m = 1, n do
    local key, field, v = A[p], A[p + 1], fields[m]
    if not v then
      call('HSET', key, field, '\255\4' .. drawn .. A[p + 2])
      index(key)
    else
      local k, from, pos = byte(v), 2, places[m]
      if k == 255 then
        k, from = byte(v, 2), 3
      elseif k >= 8 then
        unload(key, field, p + 1, p + 1)
        k = k % 8
      end
      if k % 8 < 4 then
        call('HSET', key, field, '\255' .. char(k + 4) .. sub(v, from) .. drawn .. A[p + 2])
      else
        -- What is in the fields stays newer than all that is in the history.
        local long = #v - pos > 299
        if k >= 96 or long and k >= 8 then
          pack(key, field, floor(k / 8))
          k = k % 8
        end
        if long or k < 8 and wide(key) then
          call('ZADD', history(key), 0, field .. sub(v, pos))
          call('HSET', key, field, '\255' .. char(k) .. sub(v, from, pos - 1) .. drawn .. A[p + 2])
        else
          local h = older[field]
          if not h then
            h = 'H' .. sub(field, 2)
            older[field] = h
          end
          call('HSET', key, field, '\255' .. char(k + 8) .. sub(v, from, pos - 1) .. drawn .. A[p + 2], h .. char(floor(k / 8)), sub(v, pos))
        end
      end
    end
    p = p + 3
  end
  no = no + 1
  out[no] = drawn
end

