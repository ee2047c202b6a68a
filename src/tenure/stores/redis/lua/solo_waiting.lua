#!lua flags=no-writes
-- Per queue, how many each of its first suspects may run with. ARGV: how many suspects to look at in all, then queues.
local answers, left = {}, tonumber(ARGV[1])
for i = 2, #ARGV do
  if left > 0 and redis.call('HEXISTS', ns .. 'paused', ARGV[i]) == 0 then
    local together = {}
    for n, id in ipairs(redis.call('ZRANGE', lane_key(ARGV[i], true), 0, left - 1)) do
      together[n] = tonumber(redis.call('HGET', job(id), 'together') or 1)
    end
    left = left - #together
    answers[#answers + 1] = together
  end
end
return answers
