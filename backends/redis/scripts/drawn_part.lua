-- Before its page the script draws a timestamp: whatever the page holds was drawn before, and nothing can have been
-- drawn since. Only what was put ahead, as a lease is, lies above it.
local t = call('TIME')
local err = oracleLoad(KEYS[1], t[1] * 1000 + floor(t[2] / 1000))
if err then return err end
local took = {ms, ctr}
oracleTake(1)
oracleSave()
