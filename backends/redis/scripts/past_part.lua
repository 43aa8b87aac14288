-- past returns what a begin must answer that wants the two newest writes of a cell, whose field is
-- v, and how many bytes that is. It is v alone, or a list of older writes, as members of the history,
-- and v. If the row's hash has older writes, the newest is the last of them. Otherwise it is a single
-- one of the history, or in the newest chunk. Most rows have no history, so it asks for that first. If
-- version 2 put older writes into the hash, or one cannot be read, the bytes are more than any answer may
-- have. So are they if the cell is damaged. It raises no error: the script may have written.
local function past(key, field, v)
  local k, before = byte(v), true
  if k == 255 then k, before = byte(v, 2), false end
  if not k then return false, math.huge end
  if k % 8 < 4 then return v, #v end
  if k >= 8 then
    local w = not before and call('HGET', key, 'H' .. sub(field, 2) .. char(floor(k / 8) - 1))
    if not w then return false, math.huge end
    return {field .. w, v}, #field + #w + #v
  end
  local tag = find(key, '}', 1, true)
  local hkey = sub(key, 1, tag) .. 'h' .. sub(key, tag + 2)
  if call('EXISTS', hkey) == 0 then return v, #v end
  local after = '\255\255\255\255\255\255\255\255\255'
  local r = redis.pcall('ZRANGEBYLEX', hkey, '[' .. field, '(' .. field .. after, 'LIMIT', 0, 1)
  if r.err then return false, math.huge end
  if not before then
    local c = 'C' .. sub(field, 2)
    r[#r + 1] = call('ZRANGEBYLEX', hkey, '[' .. c, '(' .. c .. after, 'LIMIT', 0, 1)[1]
  end
  if not r[1] then return v, #v end
  r[#r + 1] = v
  local size = 0
  for i = 1, #r do size = size + #r[i] end
  return r, size
end
