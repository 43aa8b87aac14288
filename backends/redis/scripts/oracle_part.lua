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
    if level ~= 3 then return redis.error_reply('FORMAT ' .. level) end
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
  call('SET', oracleKey, sp('>I6BI6I3I6', 281474976710655, 3, ms, ctr, bound) .. oracleRun)
end
