-- The script applies groups of mutations of any kind.
-- These are the slots to wake for, by table.
local woken
-- These are the columns of the whole batch, numbered by q: raw field, write (inverted
-- timestamp and value), lock and mark (inverted timestamp, value apart). K is the
-- number of older writes in the row's hash, O tells that version 2 put them there, and HF and HV
-- are one that will be added.
local V, W, L8, LV, M8, MV, D = {}, {}, {}, {}, {}, {}, {}
local K, O, HF, HV = {}, {}, {}, {}
local q = 0
-- These are the mutations of this group: where each one's head and edits are, and
-- its first column.
local H, E, Q = {}, {}, {}

-- parse takes a cell apart, and tells whether it is whole.
local function parse(v, i)
  local k, pos, size = byte(v), 2, #v
  if k == 255 then k, pos = byte(v, 2), 3 elseif k and k >= 8 then O[i] = true end
  local f = k and k % 8 or 0
  if f == 0 then return false end
  K[i] = (k - f) / 8
  if f == 4 then
    W[i] = sub(v, pos)
    return size >= pos + 7
  end
  if f % 2 == 1 then
    if size < pos + 11 then return false end
    local l = su('>I4', v, pos + 8)
    L8[i] = sub(v, pos, pos + 7)
    LV[i] = sub(v, pos + 12, pos + 11 + l)
    pos = pos + 12 + l
  end
  if f % 4 >= 2 then
    if size < pos + 11 then return false end
    local l = su('>I4', v, pos + 8)
    M8[i] = sub(v, pos, pos + 7)
    MV[i] = sub(v, pos + 12, pos + 11 + l)
    pos = pos + 12 + l
  end
  if f < 4 then return size >= pos - 1 end
  W[i] = sub(v, pos)
  return size >= pos + 7
end

-- readable tells whether the notifications of a column can be read, from the newest down to the
-- first one at an inverted timestamp or behind it. It looks at none behind that: a column may have
-- very many.
local function readable(v, h, l)
  local pos, size = 1, #v
  while pos <= size do
    if size < pos + 11 then return false end
    local oh, ol, n = su('>I4I4I4', v, pos)
    pos = pos + 12 + n
    if pos > size + 1 then return false end
    if oh > h or oh == h and ol >= l then return true end
  end
  return true
end

-- merged is what becomes of the notifications of a column by the edits at A[e], which
-- encode_notes.go describes. It passes the old ones once, and none behind the last edit.
local function merged(old, e, drawn)
  local dels, np = A[e + 5], A[e + 6]
  local puts = {}
  for j = 1, np do
    local ts, val = A[e + 5 + 2 * j], A[e + 6 + 2 * j]
    if ts == '' then ts = drawn end
    local h, l = su('>I4I4', ts)
    -- They come newest first, but for the one at the timestamp that was drawn.
    local at = j
    while at > 1 and (puts[at - 1][1] > h or puts[at - 1][1] == h and puts[at - 1][2] > l) do
      puts[at] = puts[at - 1]
      at = at - 1
    end
    puts[at] = {h, l, ts .. sp('>I4', #val) .. val}
  end
  -- What lies from one of the old ones up to pos stays as it is.
  local keep, n, from, pos, size = {}, 0, 1, 1, #old
  local function add(piece, next)
    keep[n + 1], keep[n + 2] = sub(old, from, pos - 1), piece
    n, from = n + 2, next
  end
  local j, d, nd = 1, 1, #dels
  local h1, l1, h2, l2
  if nd > 0 then h1, l1, h2, l2 = su('>I4I4I4I4', dels) end
  while (j <= np or d <= nd) and size >= pos + 11 do
    local h, l, len = su('>I4I4I4', old, pos)
    local next, put = pos + 12 + len, puts[j]
    if put and (put[1] < h or put[1] == h and put[2] <= l) then
      if put[1] < h or put[2] < l then next = pos end -- else it takes the place of the old one
      add(put[3], next)
      j = j + 1
    else
      while d <= nd and (h2 < h or h2 == h and l2 < l) do
        d = d + 16
        if d <= nd then h1, l1, h2, l2 = su('>I4I4I4I4', dels, d) end
      end
      if d <= nd and (h1 < h or h1 == h and l1 <= l) then add('', next) end
    end
    pos = next
  end
  while j <= np do
    add(puts[j][3], pos)
    j = j + 1
  end
  keep[n + 1] = sub(old, from)
  return table.concat(keep)
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

-- carve removes the writes in the inverted range [h1,l1] to [h2,l2] from the chunks of a column,
-- and tells whether there were any. A chunk that is only in part in the range is written anew. One
-- that is damaged goes as a whole or stays as it is.
local function carve(key, f, h1, l1, h2, l2)
  local hkey, c, gone = history(key), 'C' .. sub(f, 2), false
  local first, over = '[' .. c .. sp('>I4I4', h1, l1), c .. sp('>I4I4', h2, l2) .. '\255'
  local function cut(from)
    local m = call('ZRANGEBYLEX', hkey, from, '(' .. c .. '\255\255\255\255\255\255\255\255\255', 'LIMIT', 0, 1)[1]
    if not m then return false end
    local newer, older, at, found = {}, {}, #c + 9, false
    while at < #m do
      if #m < at + 9 then return true end
      local n, h, l = su('>I2I4I4', m, at)
      if n < 8 or #m < at + 1 + n then return true end
      local entry = sub(m, at, at + 1 + n)
      if h < h1 or h == h1 and l < l1 then
        newer[#newer + 1] = entry
      elseif h > h2 or h == h2 and l > l2 then
        older[#older + 1] = entry
      else
        found = true
      end
      at = at + 2 + n
    end
    if found then
      call('ZREM', hkey, m)
      addChunk(key, f, newer)
      addChunk(key, f, older)
      gone = true
    end
    return true
  end
  -- Chunks do not overlap, and each stands at its oldest write. So only two can be in the
  -- range in part: the first one that stands in it or behind it, and then the first one
  -- behind it.
  if not cut(first) then return false end
  if call('ZREMRANGEBYLEX', hkey, first, '(' .. over) > 0 then gone = true end
  cut('[' .. over)
  return gone
end

-- settle makes the older writes among the fields of a column those of this version. The mutation's
-- nw cell columns have their fields behind A[fp].
local function settle(key, f, i, fp, nw)
  if not O[i] then return end
  unload(key, f, fp + 1, fp + nw)
  O[i], K[i], D[i] = nil, 0, true
end

-- spill moves the older writes of a column to its history, and leaves no copies of them among
-- the fields.
local function spill(key, f, i, fp, nw)
  settle(key, f, i, fp, nw)
  if HF[i] then call('HSET', key, HF[i], HV[i]) end
  if K[i] > 0 then
    pack(key, f, K[i])
    D[i] = true
  end
  HF[i], K[i] = nil, 0
  call('HDEL', key, unpack(recents(f, 12)))
end

-- takeNewest takes the newest write of a column out of its history, unless that is damaged.
local function takeNewest(key, f)
  local hkey, c = history(key), 'C' .. sub(f, 2)
  local r = call('ZRANGEBYLEX', hkey, '[' .. f, '(' .. f .. '\255\255\255\255\255\255\255\255', 'LIMIT', 0, 1)[1]
  local m = call('ZRANGEBYLEX', hkey, '[' .. c, '(' .. c .. '\255\255\255\255\255\255\255\255\255', 'LIMIT', 0, 1)[1]
  local w = r and #r >= #f + 8 and sub(r, #f + 1) or nil
  if m and #m >= #c + 18 then
    local n, h, l = su('>I2I4I4', m, #c + 9)
    local rh, rl
    if w then rh, rl = su('>I4I4', w) end
    if n >= 8 and #m >= #c + 10 + n and (not w or h < rh or h == rh and l < rl) then
      w = sub(m, #c + 11, #c + 10 + n)
      carve(key, f, h, l, h, l)
      return w
    end
  end
  if w then call('ZREM', hkey, r) end
  return w
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
      local fp, damaged = p + 3, false
      p = p + 4 + nw + nn
      if nw == 1 and nn == 0 then
        local v = call('HGET', key, A[fp + 1])
        V[q + 1] = v
        damaged = v and not parse(v, q + 1)
      else
        for from = 1, nw + nn, 50 do
          local to = from + 49
          if to > nw + nn then to = nw + nn end
          local vs = call('HMGET', key, unpack(A, fp + from, fp + to))
          for i = from, to do
            local v = vs[i - from + 1]
            V[q + i] = v
            if v then
              local good
              if i <= nw then good = parse(v, q + i) else good = readable(v, 0, 0) end
              damaged = damaged or not good
            end
          end
        end
      end
      if damaged then
        failed = m
        q = q + nw + nn
        no = no + 1
        out[no] = -m
        break
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
      if not failed then
        -- The edits of notifications come first.
        local e = p + 1
        while A[e] == 10 do
          local v = V[q + A[e + 1]]
          if v and not readable(v, A[e + 3], A[e + 4]) then damaged = true end
          e = e + 7 + 2 * A[e + 6]
        end
      end
      local n = nw + nn
      if damaged then
        failed = m
        q = q + n
        no = no + 1
        out[no] = -m
        break
      end
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
                local f = A[fp + c]
                settle(key, f, i, fp, nw)
                if HF[i] then
                  call('HSET', key, HF[i], HV[i])
                  HF[i] = nil
                end
                local k, long = K[i], #old > 300
                if k >= 12 or long and k > 0 then
                  pack(key, f, k)
                  k = 0
                end
                if long or k == 0 and wide(key) then
                  call('ZADD', history(key), 0, f .. old)
                else
                  HF[i], HV[i] = 'H' .. sub(f, 2) .. char(k), old
                  k = k + 1
                end
                K[i] = k
                W[i] = ts .. val
              elseif h == oh and l == ol then
                W[i] = ts .. val
              else
                local f = A[fp + c]
                local x = f .. ts
                spill(key, f, i, fp, nw)
                carve(key, f, h, l, h, l)
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
            local f = A[fp + c]
            if W[i] then
              spill(key, f, i, fp, nw)
              if carve(key, f, A[p + 2], A[p + 3], A[p + 4], A[p + 5]) then removed = true end
            end
            if call('ZREMRANGEBYLEX', history(key), A[p + 6], A[p + 7]) > 0 then removed = true end
            if W[i] and within(W[i], 1, A[p + 2], A[p + 3], A[p + 4], A[p + 5]) then
              W[i], D[i] = takeNewest(key, f), true
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
          else -- 10: put and delete notifications of a column
            local i, f, member = q0 + A[p + 1], A[fp + A[p + 1]], A[p + 2]
            local old = V[i]
            local new = merged(old or '', p, drawn)
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
            if A[p + 6] > 0 then put = true end
            p = p + 7 + 2 * A[p + 6]
          end
        end
        -- The cell columns go back into their fields.
        for c = 1, nw do
          local i = q0 + c
          if D[i] then
            settle(key, A[fp + c], i, fp, nw)
            local l8, m8, w = L8[i], M8[i], W[i]
            if not l8 and not m8 then
              if w then
                local v = '\255' .. char(4 + 8 * (K[i] or 0)) .. w
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
                call('HSET', key, A[fp + c], '\255' .. char(f) .. s, HF[i], HV[i])
              else
                call('HSET', key, A[fp + c], '\255' .. char(f) .. s)
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
          -- Each slot counts once. Of 1024 the message has 4 KiB; with one more it means any row.
          local slot = sub(w, -4)
          if not slots[slot] and #slots <= 1024 then
            slots[slot] = true
            slots[#slots + 1] = slot
          end
        end
      end
      no = no + 1
      out[no] = drawn or 1
    end
  end
  p = gend
end
