#!lua flags=no-writes
-- Jobs that may be rescued: their worker is dead or missing, or they are silent for two leases too long; longest silent
-- first. ARGV: limit. Returns per job the answer of `to_take`.
local found, limit = {}, tonumber(ARGV[1])
local enough = 4 * limit -- candidates for the longest silent; more of them would block the server for too long
for _, worker in ipairs(redis.call('SMEMBERS', ns .. 'owners')) do
  if not redis.call('ZSCORE', ns .. 'alive', worker) then
    local why = redis.call('HGET', ns .. 'worker:' .. worker, 'death') or 'missing'
    for _, id in ipairs(redis.call('HKEYS', ns .. 'processing:' .. worker)) do
      if #found == enough then break end
      found[#found + 1] = {silent_since(id), id, worker, why}
    end
  end
end
local before, at = '(' .. string.format('%.0f', now), 0
repeat
  local hung = redis.call('ZRANGEBYSCORE', ns .. 'stale', '-inf', before, 'WITHSCORES', 'LIMIT', at, enough)
  for n = 1, #hung, 2 do
    local id, since = hung[n], tonumber(hung[n + 1])
    local worker = redis.call('HGET', job(id), 'worker_id')
    local lease = redis.call('HGET', ns .. 'worker:' .. worker, 'lease')
    if lease and redis.call('ZSCORE', ns .. 'alive', worker) and now - since > 2 * tonumber(lease) then
      found[#found + 1] = {silent_since(id), id, worker, 'hung'}
    end
  end
  at = at + enough
until #hung < 2 * enough or #found >= enough
table.sort(found, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
local answers = {}
for n = 1, math.min(#found, limit) do
  local since, id, worker, why = unpack(found[n])
  answers[n] = to_take(id, worker, why, since)
end
return answers
