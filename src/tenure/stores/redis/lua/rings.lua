
-- After the transition: one entry in the doorbell's stream (notifiers/redis.py reads it). It is written in the same
-- step, before the caller gets the answer.
local fields = {}
for _, each in pairs(rings) do fields[#fields + 1], fields[#fields + 2] = each[1], each[2] end
if #fields > 0 then redis.call('XADD', ns .. 'bell', 'MAXLEN', '~', 256, '*', unpack(fields)) end
