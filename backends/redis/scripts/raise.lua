-- The script gives the oracle of a store of an earlier version this version: see migrate.go. From
-- then on programs of earlier versions draw no more. It may run any number of times.
local m, o = KEYS[1], KEYS[2]
-- From the first write on, programs of earlier versions are shut out. So a user who could not go on from
-- there does not begin. The rest of what he needs was tried out on rows (record.go).
local e, l, n = sub(o, 1, -2) .. 'e', sub(o, 1, -2) .. 'l', sub(o, 1, -2) .. 'n:'
for _, c in ipairs({
  {'SET', o, ''}, {'SET', e, ''}, {'SET', l, ''}, {'MGET', o, e},
  {'HGET', m, 'format'}, {'HSETNX', m, 'spread', 'rows'}, {'HSET', m, 'format', '3'},
  {'ZRANGE', n, '0', '15'}, {'HEXISTS', n, 'f'},
}) do
  if not redis.acl_check_cmd(unpack(c)) then
    return redis.error_reply('NOPERM the user may not run ' .. c[1] .. ', which the store needs')
  end
end
local s = call('GET', o)
if s and #s == 55 then
  call('SET', o, '\255\255\255\255\255\255\3' .. s)
elseif s and #s == 62 and byte(s, 7) == 2 then
  call('SET', o, sub(s, 1, 6) .. '\3' .. sub(s, 8))
end
return '1'
