#!lua
local call, su, sp = redis.call, struct.unpack, struct.pack
local byte, sub, find, char, floor = string.byte, string.sub, string.find, string.char, math.floor
if not find(call('INFO', 'replication'), 'role:master', 1, true) then
  return redis.error_reply('READONLY percolator: the server is a replica')
end
-- The script makes the store's own record, unless the store is to be opened as it is. If there is one, it answers that record: format,
-- partitions, and what puts rows into them. The fourth field is 1 if the oracle is of
-- version 1.
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
got[4] = call('STRLEN', KEYS[2]) == 55 and '1' or ''
return got
