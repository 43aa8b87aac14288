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

-- The script applies groups of mutations of any kind.
-- These are the slots to wake for, by table.
local woken
-- These are the columns of the whole batch, numbered by q: raw field, write (inverted
-- timestamp and value), lock and mark (inverted timestamp, value apart). K is the
-- number of older writes in the row's hash. HF and HV are one that will be added there.
local V, W, L8, LV, M8, MV, D = {}, {}, {}, {}, {}, {}, {}
local K, HF, HV = {}, {}, {}
local q = 0
-- These are the mutations of this group: where each one's head and edits are, and
-- its first column.
local H, E, Q = {}, {}, {}

local function parse(v, i)
  local k = byte(v)
  local f = k % 8
  K[i] = (k - f) / 8
  if f == 4 then
    W[i] = sub(v, 2)
    return
  end
  local pos = 2
  if f % 2 == 1 then
    local l = su('>I4', v, pos + 8)
    L8[i] = sub(v, pos, pos + 7)
    LV[i] = sub(v, pos + 12, pos + 11 + l)
    pos = pos + 12 + l
  end
  if f % 4 >= 2 then
    local l = su('>I4', v, pos + 8)
    M8[i] = sub(v, pos, pos + 7)
    MV[i] = sub(v, pos + 12, pos + 11 + l)
    pos = pos + 12 + l
  end
  if f >= 4 then W[i] = sub(v, pos) end
end

-- within tells whether an inverted timestamp lies in [h1,l1] to [h2,l2].
local function within(s, pos, h1, l1, h2, l2)
  local h, l = su('>I4I4', s, pos)
  return (h > h1 or h == h1 and l >= l1) and (h < h2 or h == h2 and l <= l2)
end

-- exact is the history range of one version: prefix ends in its timestamp.
local function exact(prefix)
  local n = #prefix
  local h, l = su('>I4I4', prefix, n - 7)
  if l == 4294967295 then h, l = h + 1, 0 else l = l + 1 end
  return '[' .. prefix, '(' .. sub(prefix, 1, n - 8) .. sp('>I4I4', h, l)
end

-- spill moves the older writes of a column, and the one that joins them, to its
-- history. The mutation's nw cell columns have their fields behind A[fp].
local function spill(key, f, i, fp, nw)
  unload(key, f, fp + 1, fp + nw)
  if HF[i] then
    call('ZADD', history(key), 0, f .. sub(HF[i], #f + 1) .. HV[i])
    HF[i] = nil
  end
  K[i] = 0
  D[i] = true
end

local p, na = 4, #A
while p <= na and A[p] do
  local gend, nm, draw = A[p], A[p + 1], A[p + 2]
  local nah, nal = A[p + 3], A[p + 4]
  p = p + 5
  local failed = false
  if nm == 0 then
    quick(p, draw, nah, nal)
  else
    for m = 1, nm do
      -- Head: row key, table and slot to wake for, or false, number of cell
      -- columns and of notification columns, and their fields.
      H[m], Q[m] = p, q
      local key, nw, nn = A[p], A[p + 2], A[p + 3]
      local fp = p + 3
      p = p + 4 + nw + nn
      if nw == 1 and nn == 0 then
        local v = call('HGET', key, A[fp + 1])
        V[q + 1] = v
        if v then parse(v, q + 1) end
      else
        for from = 1, nw + nn, 50 do
          local to = from + 49
          if to > nw + nn then to = nw + nn end
          local vs = call('HMGET', key, unpack(A, fp + from, fp + to))
          for i = from, to do
            local v = vs[i - from + 1]
            V[q + i] = v
            if v and i <= nw then parse(v, q + i) end
          end
        end
      end
      -- Conditions, ended by 0. On a failure the raw fields go back, and the
      -- client finds the condition that failed first.
      while true do
        local op = A[p]
        if op == 0 then
          p = p + 1
          break
        end
        local c = q + A[p + 1]
        local bad = false
        if op == 1 then
          if L8[c] then
            bad = true
          else
            local h, l, w, r = A[p + 2], A[p + 3], W[c], M8[c]
            if w then
              local wh, wl = su('>I4I4', w)
              bad = wh < h or wh == h and wl <= l
            end
            if r and not bad then
              local rh, rl = su('>I4I4', r)
              bad = rh < h or rh == h and rl <= l
            end
          end
          p = p + 4
        elseif op == 2 then
          bad = L8[c] ~= A[p + 2]
          p = p + 3
        elseif op == 3 then
          bad = L8[c] == A[p + 2]
          p = p + 3
        elseif op == 8 then
          bad = true
          p = p + 2
        else
          local s
          if op == 4 then
            s = W[c]
          elseif op == 5 then
            s = M8[c]
          elseif op == 6 then
            s = L8[c]
          else
            s = V[c]
          end
          if s then
            local sh, sl = su('>I4I4', s)
            local h, l = A[p + 2], A[p + 3]
            bad = sh < h or sh == h and sl <= l
          end
          p = p + 4
        end
        if bad then
          failed = m
          break
        end
      end
      local n = nw + nn
      if failed then
        local raw = {m}
        for i = 1, n do raw[i + 1] = V[q + i] end
        q = q + n
        no = no + 1
        out[no] = raw
        break
      end
      q = q + n
      -- The edits are skipped now: their length follows the conditions.
      E[m] = p + 1
      p = A[p]
    end
    local drawn
    if not failed then
      if draw then
        drawn = take(nah, nal)
        failed = not drawn
      end
    end
    if not failed then
      for m = 1, nm do
        local hp, q0 = H[m], Q[m]
        local key, nw, nn = A[hp], A[hp + 2], A[hp + 3]
        local fp = hp + 3
        local put, removed, known = false, false, false
        for i = q0 + 1, q0 + nw + nn do
          if V[i] then
            known = true
            break
          end
        end
        p = E[m]
        while true do
          local op = A[p]
          if op == 0 then break end
          if op == 1 then -- put a write
            local c, ts, val = A[p + 1], A[p + 2], A[p + 3]
            p = p + 4
            if ts == '' then ts = drawn end
            local i = q0 + c
            local old = W[i]
            D[i] = true
            put = true
            if not old then
              W[i], K[i] = ts .. val, 0
            else
              local oh, ol = su('>I4I4', old)
              local h, l = su('>I4I4', ts)
              if h < oh or h == oh and l < ol then
                -- The write that was the newest joins the few older ones that the row
                -- keeps, which costs less than a visit to the history each time.
                local f, k = A[fp + c], K[i]
                if #old > 300 then
                  call('ZADD', history(key), 0, f .. old)
                else
                  if k >= 12 or HF[i] then
                    spill(key, f, i, fp, nw)
                    k = 0
                  end
                  if k == 0 and wide(key) then
                    call('ZADD', history(key), 0, f .. old)
                  else
                    K[i] = k + 1
                    HF[i] = 'H' .. sub(f, 2) .. sub(old, 1, 8)
                    HV[i] = sub(old, 9)
                  end
                end
                W[i] = ts .. val
              elseif h == oh and l == ol then
                W[i] = ts .. val
              else
                local x = A[fp + c] .. ts
                if K[i] > 0 then spill(key, A[fp + c], i, fp, nw) end
                call('ZREMRANGEBYLEX', history(key), exact(x))
                call('ZADD', history(key), 0, x .. val)
              end
            end
          elseif op == 2 then -- put a lock
            local i, ts = q0 + A[p + 1], A[p + 2]
            if ts == '' then ts = drawn end
            L8[i], LV[i], D[i] = ts, A[p + 3], true
            put = true
            p = p + 4
          elseif op == 3 then -- delete the lock at a timestamp
            local i = q0 + A[p + 1]
            if L8[i] == A[p + 2] then
              L8[i], D[i] = nil, true
            end
            p = p + 3
          elseif op == 4 then -- put a mark
            local i, ts = q0 + A[p + 1], A[p + 2]
            if ts == '' then ts = drawn end
            local old = M8[i]
            local keep = false
            if old then
              local oh, ol = su('>I4I4', old)
              local h, l = su('>I4I4', ts)
              keep = oh < h or oh == h and ol < l
            end
            if not keep then M8[i], MV[i], D[i] = ts, A[p + 3], true end
            put = true
            p = p + 4
          elseif op == 5 then -- delete locks in a range
            local i = q0 + A[p + 1]
            if L8[i] and within(L8[i], 1, A[p + 2], A[p + 3], A[p + 4], A[p + 5]) then
              L8[i], D[i] = nil, true
            end
            p = p + 6
          elseif op == 6 then -- delete marks in a range
            local i = q0 + A[p + 1]
            if M8[i] and within(M8[i], 1, A[p + 2], A[p + 3], A[p + 4], A[p + 5]) then
              M8[i], D[i] = nil, true
            end
            p = p + 6
          elseif op == 7 then -- delete writes in a range, newest kept in the field
            local c = A[p + 1]
            local i = q0 + c
            if W[i] and K[i] > 0 then spill(key, A[fp + c], i, fp, nw) end
            if call('ZREMRANGEBYLEX', history(key), A[p + 6], A[p + 7]) > 0 then removed = true end
            if W[i] and within(W[i], 1, A[p + 2], A[p + 3], A[p + 4], A[p + 5]) then
              local f = A[fp + c]
              local r = call('ZRANGEBYLEX', history(key), '[' .. f, '(' .. f .. '\255\255\255\255\255\255\255\255', 'LIMIT', 0, 1)
              if r[1] then
                W[i] = sub(r[1], #f + 1)
                call('ZREM', history(key), r[1])
              else
                W[i] = nil
              end
              D[i] = true
            end
            p = p + 8
          elseif op == 8 then -- delete data in a range
            if call('ZREMRANGEBYLEX', history(key), A[p + 1], A[p + 2]) > 0 then removed = true end
            p = p + 3
          elseif op == 9 then -- put data
            local ts = A[p + 2]
            if ts == '' then ts = drawn end
            local x = A[p + 1] .. ts
            call('ZREMRANGEBYLEX', history(key), exact(x))
            call('ZADD', history(key), 0, x .. A[p + 3])
            put = true
            p = p + 4
          else -- 10: put a notification, 11: delete those in a range
            local f, member = A[fp + A[p + 1]], A[p + 2]
            local i = q0 + A[p + 1]
            local ts, val, h, l
            if op == 10 then
              ts, val = A[p + 3], A[p + 4]
              if ts == '' then ts = drawn end
              h, l = su('>I4I4', ts)
              p = p + 5
            else
              p = p + 7
            end
            local old = V[i]
            local pos, n = 1, old and #old or 0
            local keep = {}
            while pos <= n do
              local oh, ol, len = su('>I4I4I4', old, pos)
              local gone
              if ts then
                if not (oh < h or oh == h and ol < l) then
                  keep[#keep + 1] = ts .. sp('>I4', #val) .. val
                  ts = nil
                  gone = oh == h and ol == l
                end
              elseif op == 11 then
                gone = within(old, pos, A[p - 4], A[p - 3], A[p - 2], A[p - 1])
              end
              if not gone then keep[#keep + 1] = sub(old, pos, pos + 11 + len) end
              pos = pos + 12 + len
            end
            if ts then keep[#keep + 1] = ts .. sp('>I4', #val) .. val end
            local new = table.concat(keep)
            local tag = find(key, '}', 1, true)
            local idx = sub(key, 1, tag) .. 's' .. sub(key, tag + 2, find(key, '/', tag, true) - 1)
            if new == '' then
              if old then
                call('HDEL', key, f)
                call('ZREM', idx, member)
                removed = true
              end
              V[i] = false
            else
              if new ~= old then call('HSET', key, f, new) end
              if not old then call('ZADD', idx, 0, member) end
              V[i] = new
            end
            if op == 10 then put = true end
          end
        end
        -- The cell columns go back into their fields.
        for c = 1, nw do
          local i = q0 + c
          if D[i] then
            local l8, m8, w = L8[i], M8[i], W[i]
            if not l8 and not m8 then
              if w then
                local v = char(4 + 8 * (K[i] or 0)) .. w
                if HF[i] then
                  call('HSET', key, A[fp + c], v, HF[i], HV[i])
                else
                  call('HSET', key, A[fp + c], v)
                end
              elseif V[i] then
                call('HDEL', key, A[fp + c])
                removed = true
              end
            else
              local f, s = 0, ''
              if l8 then
                f = 1
                s = l8 .. sp('>I4', #LV[i]) .. LV[i]
              end
              if m8 then
                f = f + 2
                s = s .. m8 .. sp('>I4', #MV[i]) .. MV[i]
              end
              if w then
                f = f + 4 + 8 * (K[i] or 0)
                s = s .. w
              end
              if HF[i] then
                call('HSET', key, A[fp + c], char(f) .. s, HF[i], HV[i])
              else
                call('HSET', key, A[fp + c], char(f) .. s)
              end
            end
          end
        end
        -- The index holds the row while the row holds anything.
        if put then
          if not known then index(key) end
        elseif removed and call('EXISTS', key, history(key)) == 0 then
          local tag = find(key, '}', 1, true)
          local slash = find(key, '/', tag, true)
          local name = sub(key, tag + 3, slash - 1)
          local idx = sub(key, 1, tag) .. 'i:' .. name
          call('ZREM', idx, sub(key, slash + 1))
          if call('EXISTS', idx) == 0 then call('SREM', sub(key, 1, tag) .. 't', name) end
        end
        local w = A[hp + 1]
        if w then
          local name = sub(w, 1, -5)
          woken = woken or {}
          local slots = woken[name] or {}
          woken[name] = slots
          if #slots <= 256 then slots[#slots + 1] = sub(w, -4) end
        end
      end
      no = no + 1
      out[no] = drawn or 1
    end
  end
  p = gend
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
-- It comes last, because a user may lack the permission.
if woken then
  -- Without slots it means any row.
  for name, slots in pairs(woken) do
    call('PUBLISH', channel, #slots > 256 and name or name .. table.concat(slots))
  end
end
return cmsgpack.pack(out)
