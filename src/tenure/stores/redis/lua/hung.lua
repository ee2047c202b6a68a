#!lua flags=no-writes
-- Jobs of these workers that have been silent for longer than their stale_after. ARGV: workers. Returns per job: id,
-- attempt, worker, facts, how long it has been silent.
local answers = {}
for _, worker in ipairs(ARGV) do
  local held = redis.call('HGETALL', ns .. 'processing:' .. worker)
  for n = 1, #held, 2 do
    local id, lease = held[n], held[n + 1]
    if lease:sub(-1) == '+' then -- only these can have a stale_after
      local hung = redis.call('ZSCORE', ns .. 'stale', id)
      if hung and tonumber(hung) < now then
        local facts = redis.call('HGET', job(id), 'facts')
        answers[#answers + 1] = {id, tonumber(lease:sub(1, -2)), worker, facts, now - silent_since(id)}
      end
    end
  end
end
return answers
