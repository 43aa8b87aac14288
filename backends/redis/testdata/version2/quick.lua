#!lua
local call, su, sp = redis.call, struct.unpack, struct.pack
local byte, sub, find, char, floor = string.byte, string.sub, string.find, string.char, math.floor
-- The oracle's state is a string of six parts. The first 6 bytes are 255, and the next one
-- is the version of the format: programs of version 1 expect milliseconds in the first 6,
-- and refuse as many, before they write anything. Programs of this version refuse another
-- version. The next 6 bytes are milliseconds and the
-- next 3 a counter: together they are the next timestamp to hand out. The next 6 bytes are
-- the bound, in milliseconds. Every timestamp that was handed out lies below it. The rest
-- is the run id of the server that wrote the state. The bound is written at least 3 s
-- before it is reached, so that it survives the loss of the last seconds of writes. A
-- second key, whose name ends in e, holds the server's replication id and its run id. The
-- replication id changes whenever the server starts or becomes a primary. A server that
-- finds another id in either key may have lost writes, and starts at the bound.
local oracleKey, oracleRun, oracleRepl
local ms, ctr, bound = 0, 0, 0
local function oracleLoad(key, now)
  oracleKey = key
  local info = call('INFO', 'replication')
  if not find(info, 'role:master', 1, true) then
    return redis.error_reply('READONLY percolator: the server is a replica')
  end
  local got = call('MGET', key, sub(key, 1, -2) .. 'e')
  local s, e = got[1], got[2]
  if s then
    local mark, level
    if #s >= 23 then mark, level, ms, ctr, bound = su('>I6BI6I3I6', s) end
    if mark ~= 281474976710655 then
      if #s == 55 then return redis.error_reply('FORMAT 1') end
      return redis.error_reply('ERR percolator: the value of the oracle key is not an oracle')
    end
    if level ~= 2 then return redis.error_reply('FORMAT ' .. level) end
  end
  local lost = false
  -- To look for what is expected costs less than to take the text apart.
  if e and find(info, 'master_replid:' .. sub(e, 1, 40), 1, true) then
    oracleRun = sub(e, 41)
  else
    lost = e
    oracleRun = string.match(call('INFO', 'server'), 'run_id:(%x+)')
    oracleRepl = string.match(info, 'master_replid:(%x+)')
  end
  if s and (lost or sub(s, 23) ~= oracleRun) and bound > ms then
    ms = bound
    ctr = 0
  end
  if now > ms then
    ms = now
    ctr = 0
  end
  if ms >= 35184372088830 then return redis.error_reply('ERR percolator: the oracle has no timestamps left') end
end
local function oracleTake(n)
  ctr = ctr + n
  if ctr >= 262144 then
    ms = ms + floor(ctr / 262144)
    ctr = ctr % 262144
  end
end
local function oracleSave()
  if bound - ms < 3000 then bound = ms + 6000 end
  if oracleRepl then call('SET', sub(oracleKey, 1, -2) .. 'e', oracleRepl .. oracleRun) end
  call('SET', oracleKey, sp('>I6BI6I3I6', 281474976710655, 2, ms, ctr, bound) .. oracleRun)
end
-- This is what the scripts that write have in common. The argument says until when the
-- request may be applied, the oracle's key if a group draws, the channel, and then
-- the groups; write.go and encode_write.go say how they are encoded. Timestamps travel and
-- are stored inverted (2^64-1-ts), 8 bytes, most significant first, so that the
-- newest version sorts first. They are compared as pairs of 32-bit halves: a Lua
-- number has 53 bits, and Lua compares strings by the server's locale.
--
-- After the first write nothing may raise an error, because Redis does not undo writes.
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
  if level and level ~= '2' then return redis.error_reply('FORMAT ' .. level) end
end
local out, no = {0, now}, 2

-- history is the key of a row's history. Most changes do not need it.
local function history(key)
  local tag = find(key, '}', 1, true)
  return sub(key, 1, tag) .. 'h' .. sub(key, tag + 2)
end

-- wide tells whether a row has so many fields that the older writes of its columns
-- go to the history one by one. The script finds those in the hash only by reading all of
-- the hash.
local wideKey, isWide
local function wide(key)
  if key ~= wideKey then wideKey, isWide = key, call('HLEN', key) > 256 end
  return isWide
end

-- These are the older writes in the hash of one row, as names and values by field of
-- their cell, and the cells.
local heldKey, held, cells

-- move puts the older writes of a column from the row's hash into its history, and
-- tells how many there were.
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

-- unload moves the older writes of a column to the history. A wide row has some from
-- before it became wide. There it moves those of other columns too, so that the hash is
-- not read again for each. The fields A[from] to A[to] are those that this mutation
-- changes itself.
local function unload(key, f, from, to)
  if key ~= heldKey then
    heldKey, held, cells = key, {}, {}
    local all = call('HGETALL', key)
    for j = 1, #all, 2 do
      local name = all[j]
      local kind = byte(name)
      if kind == 72 then
        local of = 'W' .. sub(name, 2, -9)
        local list = held[of]
        if not list then
          list = {}
          held[of] = list
        end
        list[#list + 1] = name
        list[#list + 1] = all[j + 1]
      elseif kind == 87 then
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

-- take draws a timestamp and inverts it. If the timestamp is above the bound, it returns
-- nothing.
local function take(nah, nal)
  local h = 4294967295 - floor(ms / 16384)
  local l = 4294967295 - ((ms % 16384) * 262144 + ctr)
  oracleTake(1)
  drew = true
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
      local f, pos, bad = byte(v) % 8, 2, false
      if f ~= 4 then
        if f % 2 == 1 then
          bad = true
        elseif f % 4 >= 2 then
          local h, l = su('>I4I4', v, 2)
          bad = h < sh or h == sh and l <= sl
          pos = 14 + su('>I4', v, 10)
        end
      end
      if f >= 4 and not bad then
        local h, l = su('>I4I4', v, pos)
        bad = h < sh or h == sh and l <= sl
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
      call('HSET', key, field, '\4' .. drawn .. A[p + 2])
      index(key)
    else
      local k, pos = byte(v), places[m]
      local f = k % 8
      if f < 4 then
        call('HSET', key, field, char(f + 4) .. sub(v, 2) .. drawn .. A[p + 2])
      else
        if k >= 96 then
          unload(key, field, p + 1, p + 1)
          k = f
        end
        if #v - pos > 299 or k < 8 and wide(key) then
          call('ZADD', history(key), 0, field .. sub(v, pos))
          call('HSET', key, field, char(k) .. sub(v, 2, pos - 1) .. drawn .. A[p + 2])
        else
          local h = older[field]
          if not h then
            h = 'H' .. sub(field, 2)
            older[field] = h
          end
          call('HSET', key, field, char(k + 8) .. sub(v, 2, pos - 1) .. drawn .. A[p + 2], h .. sub(v, pos, pos + 7), sub(v, pos + 8))
        end
      end
    end
    p = p + 3
  end
  no = no + 1
  out[no] = drawn
end

-- The script applies groups that are all of the quick kind. It lacks what the other groups
-- need, so a run costs half as much.
local p, na = 4, #A
while p <= na and A[p] do
  quick(p + 5, A[p + 2], A[p + 3], A[p + 4])
  p = A[p]
end
-- Behind the groups there may be begins, after false: how many timestamps they draw, how many
-- bytes to answer at most, and fields as in begin.lua. They see what the groups have
-- written, and their timestamps are later. The script answers the milliseconds and the
-- counter of the first timestamp, and then the fields. If these have too many bytes or
-- one cannot be read, it answers none of them: nothing here may raise an error.
if p < na then
  local first, left = no + 2, A[p + 2]
  out[no + 1], out[no + 2] = ms, ctr
  no = first
  drew = true
  oracleTake(A[p + 1])
  p = p + 3
  while p <= na do
    local k = A[p + 1]
    local vs = redis.pcall('HMGET', A[p], unpack(A, p + 2, p + 1 + k))
    if vs.err then left = -1 end
    for i = 1, k do
      local v = vs[i]
      no = no + 1
      out[no] = v
      if v then left = left - #v end
    end
    if left < 0 then
      for i = no, first + 1, -1 do out[i] = nil end
      break
    end
    p = p + 2 + k
  end
end
if drew then oracleSave() end
return cmsgpack.pack(out)
