#!lua flags=allow-oom
-- processing → completed, under the lease. ARGV: worker, then id, attempt and result per job. Returns per refused job
-- its position and what the store holds instead. A worker's `processing` has each of its leases; a + after the attempt
-- means that the job also has a unique key, a stale_after or places to clean up, or that another job may wait for it.
local worker, ids, done, completed, refused = ARGV[1], {}, {}, {}, {}
for i = 2, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local held, stamp = redis.call('HMGET', ns .. 'processing:' .. worker, unpack(ids)), string.format('%.0f', now)
local seen, freed, more_of = {}, {}, {}
for n, id in ipairs(ids) do
  local attempt, result, more = ARGV[3 * n], ARGV[3 * n + 1], held[n] == ARGV[3 * n] .. '+'
  if (more or held[n] == attempt) and not seen[id] then
    seen[id] = true
    local key = job(id)
    if result == 'null' then -- the most common result, and the one that is read if none is stored
      redis.call('HSET', key, 'state', 'completed')
    else
      redis.call('HSET', key, 'state', 'completed', 'result', result)
    end
    if more then
      local f = redis.call('HMGET', key, 'unique', 'linked', 'limits', 'queue', 'solo')
      if f[1] then redis.call('HDEL', ns .. 'unique', f[1]) end
      if f[2] == '1' then ask_anew(id) end
      if f[3] then
        freed[#freed + 1], freed[#freed + 2], freed[#freed + 3] = id, limited().lane_of(f[4], f[5] == '1'), f[3]
      end
      more_of[#more_of + 1] = id
    end
    done[#done + 1] = id
    completed[#completed + 1], completed[#completed + 2] = stamp, id
  else
    refused[#refused + 1] = {n - 1, standing(id, attempt)}
  end
end
if #freed > 0 then limited().free(freed, true) end
if #more_of > 0 then redis.call('ZREM', ns .. 'stale', unpack(more_of)) end
if #done > 0 then
  redis.call('ZADD', ns .. 'completed', unpack(completed))
  release_leases(worker, done)
end
return refused
