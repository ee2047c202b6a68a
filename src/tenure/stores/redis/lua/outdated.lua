#!lua flags=no-writes
-- Live workers with an older protocol than this. ARGV: the protocol.
return outdated(tonumber(ARGV[1]))
