-- The script makes the store's own record, unless the store is to be opened as it is. If there is one, it answers that record: format,
-- partitions, and what puts rows into them. The fourth field is the version of the oracle, if
-- that is an earlier one.
local m, p, format, partitions = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local kind = call('TYPE', m).ok
if kind == 'none' then
  -- A store whose record is gone was lost in part; anything else is not a store.
  local rest
  for i, want in ipairs({'string', 'set'}) do
    local k = call('TYPE', KEYS[i + 1]).ok
    if k ~= 'none' and k ~= want then
      return redis.error_reply('FOREIGN the key ' .. KEYS[i + 1] .. ' is a ' .. k .. ', not what a store keeps there')
    end
    local length = k == 'string' and call('STRLEN', KEYS[i + 1])
    if length and length ~= 55 and length ~= 62 then
      return redis.error_reply('FOREIGN the key ' .. KEYS[i + 1] .. ' exists but not ' .. m .. ', which every store has')
    end
    if k ~= 'none' then rest = KEYS[i + 1] end
  end
  if rest then return redis.error_reply('LOST ' .. rest) end
  if ARGV[3] == 'asis' then return redis.error_reply('NONE the store is to be opened as it is') end
  call('HSET', m, 'format', format, 'partitions', partitions, 'spread', 'slots')
elseif kind ~= 'hash' then
  return redis.error_reply('FOREIGN the key ' .. m .. ' is a ' .. kind .. ', not what a store keeps there')
end
local got = call('HMGET', m, 'format', 'partitions', 'spread')
if not got[1] or not got[2] then
  return redis.error_reply('FOREIGN the hash ' .. m .. ' lacks the fields of a store')
end
kind = call('TYPE', KEYS[2]).ok
if kind ~= 'none' and kind ~= 'string' then
  return redis.error_reply('FOREIGN the key ' .. KEYS[2] .. ' is a ' .. kind .. ', not what a store keeps there')
end
got[3] = got[3] or ''
got[4] = ''
if kind == 'string' then
  local s = call('GET', KEYS[2])
  if #s == 55 then
    got[4] = '1'
  elseif #s == 62 and byte(s, 7) == 2 then
    got[4] = '2'
  end
end
return got
