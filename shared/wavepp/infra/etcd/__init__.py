"""etcd: client, sessions on one lease, elections, watches."""
