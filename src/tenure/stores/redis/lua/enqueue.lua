#!lua
-- nothing → queued, or scheduled when due later. ARGV: the number of groups, then of each what its jobs share (facts,
-- queue, rank, solo, stale_after), then of each job: id, its group, payload, when (empty: now; +delay; or an instant),
-- unique, expires. Answers of each: 1 queued, 2 scheduled, or who stands there. A job with an attempt, if only number
-- 0, is one that `claim` and `complete` have to look at more closely; most need no second look.
local groups, at = {}, 2
for g = 1, tonumber(ARGV[1]) do
  groups[g] = {facts = ARGV[at], queue = ARGV[at + 1], rank = tonumber(ARGV[at + 2]), solo = ARGV[at + 3] == '1',
               stale = ARGV[at + 4], ready = {}, added = 0, later = 0}
  at = at + 5
end
local answers, ids, later = {}, {}, {}
for i = at, #ARGV, 6 do
  local id, group, payload, when, unique, expires = ARGV[i], groups[tonumber(ARGV[i + 1])], ARGV[i + 2], ARGV[i + 3],
    ARGV[i + 4], ARGV[i + 5]
  local holder = unique ~= '' and redis.call('HGET', ns .. 'unique', unique)
  local key = job(id)
  local stands = redis.call('HGET', key, 'state')
  if stands then
    answers[#answers + 1] = {id, stands}
  elseif holder then
    answers[#answers + 1] = {holder, redis.call('HGET', job(holder), 'state')}
  else
    local run_at = now
    if when ~= '' then run_at = when:sub(1, 1) == '+' and now + tonumber(when:sub(2)) or tonumber(when) end
    local state = run_at > now and 'scheduled' or 'queued'
    redis.call('HSET', key, 'state', state, 'queue', group.queue, 'rank', group.rank, 'facts', group.facts,
      'payload', payload, 'run_at', run_at, 'enqueued_at', now)
    if group.solo then redis.call('HSET', key, 'solo', '1') end
    if group.stale ~= '' then redis.call('HSET', key, 'stale_after', group.stale, 'attempt', 0) end
    if expires ~= '' then redis.call('HSET', key, 'expires_at', run_at + tonumber(expires), 'attempt', 0) end
    if unique ~= '' then
      redis.call('HSET', key, 'unique', unique, 'attempt', 0)
      redis.call('HSET', ns .. 'unique', unique, id)
    end
    ids[#ids + 1], ids[#ids + 2] = 0, id
    if state == 'queued' then
      group.ready[#group.ready + 1], group.ready[#group.ready + 2] = score(group.rank, run_at), id
      answers[#answers + 1] = 1
    else
      later[#later + 1], later[#later + 2] = run_at, id
      group.later = group.later + 1
      answers[#answers + 1] = 2
    end
  end
end
if #ids > 0 then redis.call('ZADD', ns .. 'jobs', unpack(ids)) end
if #later > 0 then redis.call('ZADD', ns .. 'scheduled', unpack(later)) end
for _, group in ipairs(groups) do
  if #group.ready > 0 then
    redis.call('ZADD', lane(group.queue, group.solo), unpack(group.ready))
    ring('queued', group.queue)
  end
  if group.later > 0 then
    count_scheduled(group.queue, group.later)
    ring('due', group.queue)
  end
  redis.call('SADD', ns .. 'queues', group.queue)
end
return answers
