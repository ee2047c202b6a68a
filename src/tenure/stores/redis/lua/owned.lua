#!lua flags=no-writes
-- The leases of a worker on these jobs. ARGV: worker, bytes, then per job its id and the attempt that the caller knows
-- (empty: none). It ends with the job that reaches the bytes. Returns how many it looked at, and per lease: id, attempt,
-- the reason of a requested cancel, and for one that the caller does not know the rest of what `claim` returns.
local answers, room = {0}, tonumber(ARGV[2])
for i = 3, #ARGV, 2 do
  local id = ARGV[i]
  if redis.call('HEXISTS', ns .. 'processing:' .. ARGV[1], id) == 1 then
    local f = redis.call('HMGET', job(id), 'attempt', 'cancel_reason')
    if ARGV[i + 1] == f[1] then
      answers[#answers + 1] = {id, f[1], f[2]}
    else
      local g = redis.call('HMGET', job(id), 'facts', 'payload', 'enqueued_at', unpack(PAST))
      local earlier = past(f[1], g, 3)
      answers[#answers + 1] = {id, f[1], f[2], g[1], g[2], g[3], earlier}
      room = room - #g[2] - (earlier[3] and #earlier[3] or 0)
    end
  end
  answers[1] = answers[1] + 1
  if room <= 0 then break end
end
return answers
