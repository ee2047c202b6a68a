#!lua flags=allow-oom
-- Put texts in the place of others. ARGV: per text its place, owner, key, the old text, and the new one. Returns how
-- many old ones were still there.
local function put(key, field, before, old, new)
  if redis.call('HGET', key, field) ~= before .. old then return 0 end
  redis.call('HSET', key, field, before .. new)
  return 1
end

local hashes, count = {log = 'log:', once = 'once:'}, 0
for i = 1, #ARGV, 5 do
  local place, owner, key, old, new = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  if hashes[place] then
    count = count + put(ns .. hashes[place] .. owner, key, '', old, new)
  elseif place == 'note' then
    local stored = redis.call('HGET', ns .. 'notes', owner) or ''
    count = count + put(ns .. 'notes', owner, stored:match('^%-?%d*=') or '', old, new)
  elseif place == 'signal' then
    local kept = owner == '' and ns .. 'shared' or ns .. 'signals:' .. owner
    local stored = redis.call('HGET', kept, key) or ''
    count = count + put(kept, key, stored:match('^%d+=') or '', old, new)
  elseif place == 'attempt' then
    local stored = redis.call('HGET', ns .. 'attempts:' .. owner, key)
    local row = stored and cjson.decode(stored)
    if row and row.error == old then
      row.error = new
      redis.call('HSET', ns .. 'attempts:' .. owner, key, cjson.encode(row))
      count = count + 1
    end
  else
    count = count + put(job(owner), place, '', old, new)
  end
end
return count
