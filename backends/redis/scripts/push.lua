-- The script publishes messages: the channel, and then each of them. It is a script so that a replica refuses it, whose
-- listeners are not those of the primary.
local A = cmsgpack.unpack(ARGV[1])
for i = 2, #A do call('PUBLISH', A[1], A[i]) end
return '1'
