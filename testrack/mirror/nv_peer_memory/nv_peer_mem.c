/* Stand-in: the test rack's kernel loads no modules. nv_peer_mem.json says what its stand-in kernel shall list. */
