out_dir = "out-shakespeare"
n_embd = 32
batch_size = 4
