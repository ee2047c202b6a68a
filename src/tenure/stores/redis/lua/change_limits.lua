#!lua
-- Write rows of limits and keys, each only if the rev is still the one that was read. ARGV: per row 1 if it is about a
-- key, its name, the limit of a key, the rev that was read, 1 if it has a rate, the body to store (empty: delete it).
-- Returns per row 1 if it landed.
local answers, keys = {}, limited()
for i = 1, #ARGV, 6 do
  local of_key, name, limit, rev = ARGV[i] == '1', ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local has_rate, body = ARGV[i + 4] == '1', ARGV[i + 5]
  local rows, names, rated = ns .. 'limits', ns .. 'limit_names', ns .. 'rated'
  if of_key then rows, names, rated = ns .. 'key_limits', ns .. 'limited_keys', ns .. 'rated_keys' end
  local stands = redis.call('HGET', rows, name)
  local fits = (stands and cjson.decode(stands).rev or 0) == rev
  if fits then
    if body == '' then
      redis.call('HDEL', rows, name)
      redis.call('ZREM', names, name)
    else
      redis.call('HSET', rows, name, body)
      redis.call('ZADD', names, 0, name)
    end
    redis.call(has_rate and 'SADD' or 'SREM', rated, name)
    if of_key then
      keys.know(name, limit)
      keys.look({name})
    else
      redis.call('HDEL', ns .. 'limit_asked', name)
      redis.call('ZADD', ns .. 'limit_asks', 'NX', now, name)
      ring('due', '')
    end
  end
  answers[#answers + 1] = fits and 1 or 0
end
return answers
