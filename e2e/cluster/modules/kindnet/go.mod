module pratique.example/e2e/cluster/kindnet

go 1.26
