
-- After what was done: one entry of the doorbell's stream (notifiers/redis.py reads it). It is sent with the transition
-- itself, before its caller hears the answer.
local said = {}
for _, each in pairs(rings) do said[#said + 1], said[#said + 2] = each[1], each[2] end
if #said > 0 then redis.call('XADD', ns .. 'bell', 'MAXLEN', '~', 256, '*', unpack(said)) end
