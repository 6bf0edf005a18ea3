PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE observations (
    nonce TEXT NOT NULL PRIMARY KEY,
    cluster TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    context TEXT NOT NULL,
    at REAL NOT NULL,
    node TEXT NOT NULL,
    uid INTEGER NOT NULL,
    facts TEXT NOT NULL,
    more TEXT NOT NULL DEFAULT '{}'
);
INSERT INTO observations VALUES('1025-9326ac58ef623e7c3bc92e50e2135523','lab',1,'submit',1795795851.1741859913,'',1025,'{"submission":{"cluster":"lab","job_id":1,"uid":1025,"user":"swsite","at":1795795851.174186,"name":"ok.sh","script_path":"/var/tmp/swsite/ok.sh","script_sha256":"75c0c0c3e9fc901d8cc94d76d4b2ef95d9e3e0d7d52ae840c5219ee3e3f61b2f","work_dir":"/var/tmp/swsite","gpus":1,"nodes":1,"retry":false,"profile_key":"ok-gpux1-537d8970cca5","profile_variant":"","step_dir":"","prerun_mode":"off","prerun_job_id":null,"fingerprint":"f53376cb7b987bec652007a7a799da2186efe665f50d94bb9eea9ccae4f433e0","inputs":[],"output_appends":false,"plan":{"lines":[],"node_count":1,"gpus_per_node":null,"candidates":["n0"],"switch":"ib0","locality":"consolidated","levels":[{"name":"any","wait_s":0,"updates":[],"reason":""}],"cpus_per_gpu":null,"mem_mib_per_gpu":null,"profile_key":"ok-gpux1-537d8970cca5","remarks":["best now: n0 in ib0, an idle node: none in use has room for it","not tied to n0: no reconciler here would release it to other nodes"]},"changes":[],"forced":[],"warnings":[],"shape":{"nodes":null,"max_nodes":null,"tasks":null,"tasks_per_node":null,"gpus":1,"gpus_per_node":null,"gpu_type":null,"gpu_unit":"gpus","cpus":null,"cpu_unit":"none","mem_mib":1000,"mem_unit":"mem","time_limit_s":300,"exclusive":false},"own":{"mem":"1000"},"tune":true,"place":true,"lot":"","held_out":false}}','{}');
INSERT INTO observations VALUES('a85a1601d6b2b27884b9f13c2278ab4b','lab',2,'prolog',1795795852.1317927838,'n0',0,'{"restarts":0,"uid":1025,"nodes":"n0","gpus":"1","kernel_mark":{"source":"file:/var/tmp/slurmwrap-site-lab/nodes/n0/kmsg","inode":15352562,"offset":0}}','{}');
INSERT INTO observations VALUES('0be3e841f22865470838cf3151f9df3b','lab',1,'prolog',1795795852.1988129615,'n0',0,'{"restarts":0,"uid":1025,"nodes":"n0","gpus":"0","kernel_mark":{"source":"file:/var/tmp/slurmwrap-site-lab/nodes/n0/kmsg","inode":15352562,"offset":0}}','{}');
INSERT INTO observations VALUES('826bd1d311fd0ff643d9d4e197c8ab2e','lab',2,'epilog',1795795852.5478293895,'n0',0,'{"restarts":0,"uid":1025,"nodes":"n0","gpus":"1","exit":"1:0","wait_status":256,"derived":0,"started_at":1795795852.097451,"kernel":[],"kernel_source":"file","hooks":{"release":"0.1.0","checksum":"6cc2fb6f"},"mem_peak_mib":1,"mem_high_mib":2,"oom_kills":0,"cpu_s":0.0,"mem_source":"cgroup","logs":[{"beside":true,"name":"/var/tmp/swsite/slurm-2.out","text":"Traceback (most recent call last):\n  File \"<string>\", line 2, in <module>\nRuntimeError: CUDA error: an illegal memory access was encountered\nstep 1\n","truncated":false}]}','{}');
INSERT INTO observations VALUES('9ab4c1d60388b771e802fec027ee45cc','lab',5,'prolog',1795795852.7816505431,'n1',0,'{"restarts":0,"uid":1025,"nodes":"n[0-1]","gpus":"0","kernel_mark":{"source":"file:/var/tmp/slurmwrap-site-lab/nodes/n1/kmsg","inode":15352760,"offset":0}}','{}');
INSERT INTO observations VALUES('719cc8459ba1c6d31a14299cd3a35a9b','lab',4,'prolog',1795795852.8240888119,'n2',0,'{"restarts":0,"uid":1025,"nodes":"n[2-3]","gpus":"0","kernel_mark":{"source":"file:/var/tmp/slurmwrap-site-lab/nodes/n2/kmsg","inode":15352846,"offset":0}}','{}');
INSERT INTO observations VALUES('6dc9492b6eb4a4eb3e0e1564a75179db','lab',4,'prolog',1795795852.8776602744,'n3',0,'{"restarts":0,"uid":1025,"nodes":"n[2-3]","gpus":"0","kernel_mark":{"source":"file:/var/tmp/slurmwrap-site-lab/nodes/n3/kmsg","inode":15352873,"offset":0}}','{}');
INSERT INTO observations VALUES('440fc90b36a51c944678f80eea0976f9','lab',3,'prolog',1795795852.9129781723,'n0',0,'{"restarts":0,"uid":1025,"nodes":"n0","gpus":"1","kernel_mark":{"source":"file:/var/tmp/slurmwrap-site-lab/nodes/n0/kmsg","inode":15352562,"offset":0}}','{}');
INSERT INTO observations VALUES('52024d0fb8a38eb3323ef544b0c02bf8','lab',5,'prolog',1795795852.9388053417,'n0',0,'{"restarts":0,"uid":1025,"nodes":"n[0-1]","gpus":"2","kernel_mark":{"source":"file:/var/tmp/slurmwrap-site-lab/nodes/n0/kmsg","inode":15352562,"offset":0}}','{}');
INSERT INTO observations VALUES('1025-be176bfe902b1e01bf86691131e3b9c9','lab',2,'submit',1795795851.6630322933,'',1025,'{"submission":{"cluster":"lab","job_id":2,"uid":1025,"user":"swsite","at":1795795851.6630323,"name":"job.sh","script_path":"/var/tmp/swsite/job.sh","script_sha256":"2048c3cfcf5eab9ab342860d48d7a4f16d0e62fc336e02ebe752783e09d87449","work_dir":"/var/tmp/swsite","gpus":1,"nodes":1,"retry":true,"profile_key":"job-gpux1-e5e6bf4fc8f0","profile_variant":"","step_dir":"","prerun_mode":"off","prerun_job_id":null,"fingerprint":"4c14b8e6534da24ec08f3f45bf92aab07cb6f18629229a50e1f5ce0dd2a6b382","inputs":[],"output_appends":true,"plan":{"lines":[],"node_count":1,"gpus_per_node":null,"candidates":["n0"],"switch":"ib0","locality":"consolidated","levels":[{"name":"any","wait_s":0,"updates":[],"reason":""}],"cpus_per_gpu":null,"mem_mib_per_gpu":null,"profile_key":"job-gpux1-e5e6bf4fc8f0","remarks":["best now: n0 in ib0, an idle node: none in use has room for it","not tied to n0: no reconciler here would release it to other nodes"]},"changes":[{"option":"requeue","old":null,"new":"","where":"added","reason":"--retry: Slurm can only requeue a job that allows it"},{"option":"open-mode","old":null,"new":"append","where":"added","reason":"--retry: a second run adds to the output file instead of truncating it"}],"forced":[],"warnings":[],"shape":{"nodes":null,"max_nodes":null,"tasks":null,"tasks_per_node":null,"gpus":1,"gpus_per_node":null,"gpu_type":null,"gpu_unit":"gpus","cpus":null,"cpu_unit":"none","mem_mib":1000,"mem_unit":"mem","time_limit_s":300,"exclusive":false},"own":{"mem":"1000"},"tune":true,"place":true,"lot":"","held_out":false}}','{}');
INSERT INTO observations VALUES('f666f1529c2dfc8f08a657c418ac6bd4','lab',3,'epilog',1795795853.3420565128,'n0',0,'{"restarts":0,"uid":1025,"nodes":"n0","gpus":"1","exit":"1:0","wait_status":256,"derived":0,"started_at":1795795852.8860354,"kernel":[],"kernel_source":"file","hooks":{"release":"0.1.0","checksum":"6cc2fb6f"},"mem_peak_mib":2,"mem_high_mib":2,"oom_kills":0,"cpu_s":0.01,"mem_source":"cgroup","logs":[{"beside":true,"name":"/var/tmp/swsite/slurm-3.out","text":"Traceback (most recent call last):\n  File \"<string>\", line 2, in <module>\nRuntimeError: CUDA error: an illegal memory access was encountered\nstep 1\n","truncated":false}]}','{}');
INSERT INTO observations VALUES('c0aea74701ee488800b7d44d209b402c','lab',1,'epilog',1795795854.6706566811,'n0',0,'{"restarts":0,"uid":1025,"nodes":"n0","gpus":"0","exit":"0:0","wait_status":0,"derived":0,"started_at":1795795852.1746886,"kernel":[],"kernel_source":"file","hooks":{"release":"0.1.0","checksum":"6cc2fb6f"},"mem_peak_mib":0,"mem_high_mib":1,"oom_kills":0,"cpu_s":0.0,"mem_source":"cgroup","logs":[{"beside":true,"name":"/var/tmp/swsite/slurm-1.out","text":"trained\n","truncated":false}]}','{}');
INSERT INTO observations VALUES('7ea1e86b25fae98f5ec527a145cf9f5c','lab',4,'epilog',1795795855.2451589107,'n3',0,'{"restarts":0,"uid":1025,"nodes":"n[2-3]","gpus":"0","exit":"0:0","wait_status":0,"derived":0,"started_at":1795795852.8443644,"kernel":[],"kernel_source":"file","hooks":{"release":"0.1.0","checksum":"6cc2fb6f"}}','{}');
INSERT INTO observations VALUES('da5199300863d47042df7810d0911bcc','lab',5,'epilog',1795795855.2696537971,'n1',0,'{"restarts":0,"uid":1025,"nodes":"n[0-1]","gpus":"0","exit":"0:0","wait_status":0,"derived":0,"started_at":1795795852.7565982,"kernel":[],"kernel_source":"file","hooks":{"release":"0.1.0","checksum":"6cc2fb6f"}}','{}');
INSERT INTO observations VALUES('dfc2c16eda627cf1eaf788f206f90c38','lab',4,'epilog',1795795855.2653293608,'n2',0,'{"restarts":0,"uid":1025,"nodes":"n[2-3]","gpus":"0","exit":"0:0","wait_status":0,"derived":0,"started_at":1795795852.818894,"kernel":[],"kernel_source":"file","hooks":{"release":"0.1.0","checksum":"6cc2fb6f"},"mem_peak_mib":0,"mem_high_mib":1,"oom_kills":0,"cpu_s":0.0,"mem_source":"cgroup","logs":[{"beside":true,"name":"/var/tmp/swsite/slurm-4_1.out","text":"trained\n","truncated":false},{"beside":true,"name":"/var/tmp/swsite/slurm-4_2.out","text":"trained\n","truncated":false}]}','{}');
INSERT INTO observations VALUES('63fba964bb71b4a531c08044182b2a77','lab',5,'epilog',1795795855.3153932094,'n0',0,'{"restarts":0,"uid":1025,"nodes":"n[0-1]","gpus":"2","exit":"0:0","wait_status":0,"derived":0,"started_at":1795795852.9085054,"kernel":[],"kernel_source":"file","hooks":{"release":"0.1.0","checksum":"6cc2fb6f"},"mem_peak_mib":0,"mem_high_mib":1,"oom_kills":0,"cpu_s":0.0,"mem_source":"cgroup","logs":[]}','{}');
INSERT INTO observations VALUES('1025-bb12934ebfdd6190775e895fd95427d6','lab',3,'submit',1795795852.422959566,'',1025,'{"submission":{"cluster":"lab","job_id":3,"uid":1025,"user":"swsite","at":1795795852.4229596,"name":"job.sh","script_path":"/var/tmp/swsite/job.sh","script_sha256":"2048c3cfcf5eab9ab342860d48d7a4f16d0e62fc336e02ebe752783e09d87449","work_dir":"/var/tmp/swsite","gpus":1,"nodes":1,"retry":false,"profile_key":"job-gpux1-e5e6bf4fc8f0","profile_variant":"","step_dir":"","prerun_mode":"off","prerun_job_id":null,"fingerprint":"4c14b8e6534da24ec08f3f45bf92aab07cb6f18629229a50e1f5ce0dd2a6b382","inputs":[],"output_appends":false,"plan":{"lines":[],"node_count":1,"gpus_per_node":null,"candidates":["n0"],"switch":"ib0","locality":"consolidated","levels":[{"name":"any","wait_s":0,"updates":[],"reason":""}],"cpus_per_gpu":null,"mem_mib_per_gpu":null,"profile_key":"job-gpux1-e5e6bf4fc8f0","remarks":["best now: n0 in ib0, an idle node: none in use has room for it","not tied to n0: no reconciler here would release it to other nodes"]},"changes":[],"forced":[],"warnings":[],"shape":{"nodes":null,"max_nodes":null,"tasks":null,"tasks_per_node":null,"gpus":1,"gpus_per_node":null,"gpu_type":null,"gpu_unit":"gpus","cpus":null,"cpu_unit":"none","mem_mib":1000,"mem_unit":"mem","time_limit_s":300,"exclusive":false},"own":{"mem":"1000"},"tune":true,"place":true,"lot":"","held_out":false}}','{}');
INSERT INTO observations VALUES('7b28750073a0423a98b29c3a6f6db272','lab',2,'epilog_slurmctld',1795795852.4869260788,'',-1,'{"restarts":0,"uid":1025,"nodes":"n0","exit":"1:0","wait_status":256,"derived":0,"user":"swsite","name":"job.sh","account":"","partition":"gpu","work_dir":"/var/tmp/swsite","array_job_id":null,"array_task_id":null}','{}');
INSERT INTO observations VALUES('93af85b41ac9424cbf595c18fb17a766','lab',3,'epilog_slurmctld',1795795853.2249021529,'',-1,'{"restarts":0,"uid":1025,"nodes":"n0","exit":"1:0","wait_status":256,"derived":0,"user":"swsite","name":"job.sh","account":"","partition":"gpu","work_dir":"/var/tmp/swsite","array_job_id":null,"array_task_id":null}','{}');
INSERT INTO observations VALUES('44bde84dd39340bc98733d86e9eaa177','lab',1,'epilog_slurmctld',1795795854.4166829586,'',-1,'{"restarts":0,"uid":1025,"nodes":"n0","exit":"0:0","wait_status":0,"derived":0,"user":"swsite","name":"ok.sh","account":"","partition":"gpu","work_dir":"/var/tmp/swsite","array_job_id":null,"array_task_id":null}','{}');
INSERT INTO observations VALUES('092622ad04c14e438891ef0d4d93190a','lab',4,'epilog_slurmctld',1795795855.0905878543,'',-1,'{"restarts":0,"uid":1025,"nodes":"n[2-3]","exit":"0:0","wait_status":0,"derived":0,"user":"swsite","name":"ok.sh","account":"","partition":"gpu","work_dir":"/var/tmp/swsite","array_job_id":4,"array_task_id":2}','{}');
INSERT INTO observations VALUES('406b952ea7f64313afe3ee804927e7d4','lab',5,'epilog_slurmctld',1795795855.0994343757,'',-1,'{"restarts":0,"uid":1025,"nodes":"n[0-1]","exit":"0:0","wait_status":0,"derived":0,"user":"swsite","name":"ok.sh","account":"","partition":"gpu","work_dir":"/var/tmp/swsite","array_job_id":4,"array_task_id":1}','{}');
CREATE TABLE seen (
    nonce BLOB PRIMARY KEY,
    at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE set_aside (
    uid INTEGER NOT NULL,
    reason TEXT NOT NULL,
    count INTEGER NOT NULL,
    first_at REAL NOT NULL,
    last_at REAL NOT NULL,
    last_name TEXT NOT NULL,
    PRIMARY KEY (uid, reason)
) WITHOUT ROWID;
CREATE TABLE attempts (
    cluster TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    submit_time INTEGER NOT NULL,
    address TEXT NOT NULL,
    restarts INTEGER NOT NULL,
    name TEXT NOT NULL,
    user TEXT NOT NULL,
    uid INTEGER NOT NULL,
    account TEXT NOT NULL,
    partition TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    exit_code INTEGER,
    signal INTEGER,
    derived_exit_code INTEGER,
    nodes TEXT NOT NULL,
    gpus INTEGER NOT NULL,
    cpus INTEGER NOT NULL,
    eligible_time INTEGER,
    start_time INTEGER,
    end_time INTEGER,
    time_limit_s INTEGER,
    std_out TEXT NOT NULL,
    std_err TEXT NOT NULL,
    measurement TEXT,
    diagnosis_category TEXT,
    diagnosis_domain TEXT,
    diagnosis_decision TEXT,
    diagnosis_confidence REAL,
    diagnosis_signature TEXT,
    diagnosis_evidence TEXT,
    diagnosis_advice TEXT,
    diagnosis_node TEXT,
    diagnosis_conclusive INTEGER,
    diagnosis_input_path TEXT,
    decision TEXT NOT NULL,
    decision_reason TEXT NOT NULL,
    reconciled INTEGER NOT NULL,
    more TEXT NOT NULL DEFAULT '{}',
    incident TEXT NOT NULL DEFAULT '',
    mem_mib_per_node INTEGER,
    mem_mib_per_cpu INTEGER,
    retry_at REAL,
    diagnosis_step INTEGER,
    diagnosis_checkpoint_step INTEGER,
    diagnosis_resumed INTEGER,
    slim INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (cluster, job_id, submit_time)
) WITHOUT ROWID;
INSERT INTO attempts VALUES('lab',1,1795795851,'1',0,'ok.sh','swsite',1025,'','gpu','COMPLETED','None',0,0,0,'["n0"]',1,1,1795795851,1795795851,1795795854,300,'/var/tmp/swsite/slurm-1.out','/var/tmp/swsite/slurm-1.out',NULL,'success','','none',0.98999999999999999111,'slurm.completed','[{"source":"slurm","line":0,"text":"State COMPLETED, ExitCode 0:0","role":"root","before":[],"after":[]}]','','',0,'','none','nothing failed',1,'{"diagnosis_remaining_s":null,"diagnosis_error":""}','',1000,NULL,NULL,NULL,NULL,0,0);
INSERT INTO attempts VALUES('lab',2,1795795851,'2',0,'job.sh','swsite',1025,'','gpu','FAILED','NonZeroExitCode',1,0,0,'["n0"]',1,1,1795795851,1795795851,1795795852,300,'/var/tmp/swsite/slurm-2.out','/var/tmp/swsite/slurm-2.out','{"seconds":1.0,"cpus_allocated":1,"mem_peak_mib":1,"mem_source":"cgroup","gpus":1}','invalid_memory_access','AE','stop',0.93000000000000004884,'cuda.illegal_address','[{"source":"/var/tmp/swsite/slurm-2.out","line":3,"text":"RuntimeError: CUDA error: an illegal memory access was encountered","role":"root","before":["Traceback (most recent call last):","  File \"<string>\", line 2, in <module>"],"after":["step 1"]}]','Run once with CUDA_LAUNCH_BLOCKING=1 (or compute-sanitizer) to find the kernel; suspect custom extensions.','',0,'','stop','Run once with CUDA_LAUNCH_BLOCKING=1 (or compute-sanitizer) to find the kernel; suspect custom extensions.',1,'{"diagnosis_remaining_s":null,"diagnosis_error":""}','',1000,NULL,NULL,1,NULL,0,0);
INSERT INTO attempts VALUES('lab',3,1795795852,'3',0,'job.sh','swsite',1025,'','gpu','FAILED','NonZeroExitCode',1,0,0,'["n0"]',1,1,1795795852,1795795852,1795795853,300,'/var/tmp/swsite/slurm-3.out','/var/tmp/swsite/slurm-3.out','{"seconds":1.0,"cpu_s":0.01,"cpus_used":0.01,"cpus_allocated":1,"mem_peak_mib":2,"mem_source":"cgroup","gpus":1}','invalid_memory_access','AE','stop',0.93000000000000004884,'cuda.illegal_address','[{"source":"/var/tmp/swsite/slurm-3.out","line":3,"text":"RuntimeError: CUDA error: an illegal memory access was encountered","role":"root","before":["Traceback (most recent call last):","  File \"<string>\", line 2, in <module>"],"after":["step 1"]}]','Run once with CUDA_LAUNCH_BLOCKING=1 (or compute-sanitizer) to find the kernel; suspect custom extensions.','',0,'','stop','Run once with CUDA_LAUNCH_BLOCKING=1 (or compute-sanitizer) to find the kernel; suspect custom extensions.',1,'{"diagnosis_remaining_s":null,"diagnosis_error":""}','',1000,NULL,NULL,1,NULL,0,0);
INSERT INTO attempts VALUES('lab',4,1795795852,'4_2',0,'ok.sh','swsite',1025,'','gpu','COMPLETED','None',0,0,0,'["n2","n3"]',2,2,1795795852,1795795852,1795795855,300,'/var/tmp/swsite/slurm-4_2.out','/var/tmp/swsite/slurm-4_2.out',NULL,'success','','none',0.98999999999999999111,'slurm.completed','[{"source":"slurm","line":0,"text":"State COMPLETED, ExitCode 0:0","role":"root","before":[],"after":[]}]','','',0,'','none','nothing failed',1,'{"diagnosis_remaining_s":null,"diagnosis_error":""}','',1000,NULL,NULL,NULL,NULL,0,0);
INSERT INTO attempts VALUES('lab',5,1795795852,'4_1',0,'ok.sh','swsite',1025,'','gpu','COMPLETED','None',0,0,0,'["n0","n1"]',2,2,1795795852,1795795852,1795795855,300,'/var/tmp/swsite/slurm-4_1.out','/var/tmp/swsite/slurm-4_1.out',NULL,'success','','none',0.98999999999999999111,'slurm.completed','[{"source":"slurm","line":0,"text":"State COMPLETED, ExitCode 0:0","role":"root","before":[],"after":[]}]','','',0,'','none','nothing failed',1,'{"diagnosis_remaining_s":null,"diagnosis_error":"","output_ends":{"/var/tmp/swsite/slurm-4_1.out":[8,"15e48684"]}}','',1000,NULL,NULL,NULL,NULL,0,0);
CREATE TABLE runs (
    end_time INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    submit_time INTEGER NOT NULL,
    cluster INTEGER NOT NULL,
    run_s INTEGER NOT NULL,
    gpus INTEGER NOT NULL,
    nodes INTEGER NOT NULL,
    user INTEGER NOT NULL,
    account INTEGER NOT NULL,
    name INTEGER NOT NULL,
    category INTEGER,
    outcome INTEGER NOT NULL,
    aside INTEGER NOT NULL,
    again INTEGER NOT NULL,
    incident TEXT,
    gpu_permille INTEGER,
    gpus_unused INTEGER,
    PRIMARY KEY (end_time, job_id, submit_time, cluster)
) WITHOUT ROWID;
INSERT INTO runs VALUES(1795795852,2,1795795851,1,1,1,1,2,3,2,5,2,0,0,NULL,NULL,NULL);
INSERT INTO runs VALUES(1795795853,3,1795795852,1,1,1,1,2,3,2,5,2,0,0,NULL,NULL,NULL);
INSERT INTO runs VALUES(1795795854,1,1795795851,1,3,1,1,2,3,1,4,1,0,0,NULL,NULL,NULL);
INSERT INTO runs VALUES(1795795855,4,1795795852,1,3,2,2,2,3,1,4,1,0,0,NULL,NULL,NULL);
INSERT INTO runs VALUES(1795795855,5,1795795852,1,3,2,2,2,3,1,4,1,0,0,NULL,NULL,NULL);
CREATE TABLE names (
    id INTEGER PRIMARY KEY,
    name NOT NULL UNIQUE
);
INSERT INTO names VALUES(1,'lab');
INSERT INTO names VALUES(2,'swsite');
INSERT INTO names VALUES(3,'');
INSERT INTO names VALUES(4,'success');
INSERT INTO names VALUES(5,'invalid_memory_access');
CREATE TABLE job_names (
    id INTEGER PRIMARY KEY,
    name NOT NULL UNIQUE
);
INSERT INTO job_names VALUES(1,'ok.sh');
INSERT INTO job_names VALUES(2,'job.sh');
CREATE TABLE actions (
    action_id INTEGER PRIMARY KEY,
    cluster TEXT,
    job_id INTEGER,
    submit_time INTEGER,
    rule TEXT NOT NULL,
    mode TEXT NOT NULL,
    verb TEXT NOT NULL,
    target TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    because TEXT NOT NULL,
    intended_at REAL NOT NULL,
    done_at REAL,
    error TEXT NOT NULL,
    more TEXT NOT NULL DEFAULT '{}',
    FOREIGN KEY (cluster, job_id, submit_time) REFERENCES attempts (cluster, job_id, submit_time)
);
CREATE TABLE incidents (
    incident_id TEXT PRIMARY KEY,
    category TEXT NOT NULL,
    scope TEXT NOT NULL,
    began REAL NOT NULL,
    last REAL NOT NULL,
    over_at REAL,
    jobs TEXT NOT NULL,
    uids TEXT NOT NULL,
    nodes TEXT NOT NULL,
    reach TEXT NOT NULL,
    quiet_s REAL NOT NULL,
    spread_s REAL NOT NULL,
    max_s REAL NOT NULL,
    more TEXT NOT NULL DEFAULT '{}'
) WITHOUT ROWID;
CREATE TABLE strikes (
    strike_id INTEGER PRIMARY KEY,
    node TEXT NOT NULL,
    cause TEXT NOT NULL,
    conclusive INTEGER NOT NULL,
    text TEXT NOT NULL,
    at REAL NOT NULL,
    job_id INTEGER NOT NULL,
    uid INTEGER NOT NULL,
    cluster TEXT,
    submit_time INTEGER,
    more TEXT NOT NULL DEFAULT '{}',
    incident TEXT NOT NULL DEFAULT '',
    cleared_at REAL,
    cleared_by TEXT NOT NULL DEFAULT ''
);
CREATE TABLE gpu_faults (
    node TEXT NOT NULL,
    at REAL NOT NULL,
    cluster TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    uid INTEGER NOT NULL,
    text TEXT NOT NULL
);
CREATE TABLE removals (
    node TEXT NOT NULL,
    began REAL NOT NULL,
    reason TEXT NOT NULL,
    ours INTEGER NOT NULL,
    ended REAL,
    more TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (node, began)
) WITHOUT ROWID;
CREATE TABLE repairs (
    node TEXT NOT NULL,
    at REAL NOT NULL,
    who TEXT NOT NULL,
    kind TEXT NOT NULL,
    note TEXT NOT NULL,
    more TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (node, at, kind)
) WITHOUT ROWID;
CREATE TABLE blocked_inputs (
    digest TEXT NOT NULL,
    uid INTEGER NOT NULL,
    path TEXT NOT NULL,
    reason TEXT NOT NULL,
    at REAL NOT NULL,
    job_id INTEGER NOT NULL,
    more TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (digest, uid)
) WITHOUT ROWID;
CREATE TABLE submissions (
    cluster TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    at REAL NOT NULL,
    uid INTEGER NOT NULL,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    script_path TEXT NOT NULL,
    script_sha256 TEXT NOT NULL,
    work_dir TEXT NOT NULL,
    gpus INTEGER NOT NULL,
    nodes INTEGER NOT NULL,
    retry INTEGER NOT NULL,
    profile_key TEXT NOT NULL,
    prerun_mode TEXT NOT NULL,
    prerun_job_id INTEGER,
    fingerprint TEXT NOT NULL,
    inputs TEXT NOT NULL,
    output_appends INTEGER NOT NULL,
    plan TEXT NOT NULL,
    changes TEXT NOT NULL,
    more TEXT NOT NULL DEFAULT '{}',
    lot TEXT NOT NULL DEFAULT '',
    held_out INTEGER NOT NULL DEFAULT 0,
    slim INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (cluster, job_id, at)
) WITHOUT ROWID;
INSERT INTO submissions VALUES('lab',1,1795795851.1741859913,1025,'swsite','ok.sh','/var/tmp/swsite/ok.sh','75c0c0c3e9fc901d8cc94d76d4b2ef95d9e3e0d7d52ae840c5219ee3e3f61b2f','/var/tmp/swsite',1,1,0,'ok-gpux1-537d8970cca5','off',NULL,'f53376cb7b987bec652007a7a799da2186efe665f50d94bb9eea9ccae4f433e0','[]',0,'{"lines":[],"node_count":1,"gpus_per_node":null,"candidates":["n0"],"switch":"ib0","locality":"consolidated","levels":[{"name":"any","wait_s":0,"updates":[],"reason":""}],"cpus_per_gpu":null,"mem_mib_per_gpu":null,"profile_key":"ok-gpux1-537d8970cca5","remarks":["best now: n0 in ib0, an idle node: none in use has room for it","not tied to n0: no reconciler here would release it to other nodes"]}','[]','{"shape":{"gpus":1,"gpu_unit":"gpus","cpu_unit":"none","mem_mib":1000,"mem_unit":"mem","time_limit_s":300},"own":{"mem":"1000"},"tune":true,"place":true}','',0,0);
INSERT INTO submissions VALUES('lab',2,1795795851.6630322933,1025,'swsite','job.sh','/var/tmp/swsite/job.sh','2048c3cfcf5eab9ab342860d48d7a4f16d0e62fc336e02ebe752783e09d87449','/var/tmp/swsite',1,1,1,'job-gpux1-e5e6bf4fc8f0','off',NULL,'4c14b8e6534da24ec08f3f45bf92aab07cb6f18629229a50e1f5ce0dd2a6b382','[]',1,'{"lines":[],"node_count":1,"gpus_per_node":null,"candidates":["n0"],"switch":"ib0","locality":"consolidated","levels":[{"name":"any","wait_s":0,"updates":[],"reason":""}],"cpus_per_gpu":null,"mem_mib_per_gpu":null,"profile_key":"job-gpux1-e5e6bf4fc8f0","remarks":["best now: n0 in ib0, an idle node: none in use has room for it","not tied to n0: no reconciler here would release it to other nodes"]}','[{"option":"requeue","old":null,"new":"","where":"added","reason":"--retry: Slurm can only requeue a job that allows it"},{"option":"open-mode","old":null,"new":"append","where":"added","reason":"--retry: a second run adds to the output file instead of truncating it"}]','{"shape":{"gpus":1,"gpu_unit":"gpus","cpu_unit":"none","mem_mib":1000,"mem_unit":"mem","time_limit_s":300},"own":{"mem":"1000"},"tune":true,"place":true}','',0,0);
INSERT INTO submissions VALUES('lab',3,1795795852.422959566,1025,'swsite','job.sh','/var/tmp/swsite/job.sh','2048c3cfcf5eab9ab342860d48d7a4f16d0e62fc336e02ebe752783e09d87449','/var/tmp/swsite',1,1,0,'job-gpux1-e5e6bf4fc8f0','off',NULL,'4c14b8e6534da24ec08f3f45bf92aab07cb6f18629229a50e1f5ce0dd2a6b382','[]',0,'{"lines":[],"node_count":1,"gpus_per_node":null,"candidates":["n0"],"switch":"ib0","locality":"consolidated","levels":[{"name":"any","wait_s":0,"updates":[],"reason":""}],"cpus_per_gpu":null,"mem_mib_per_gpu":null,"profile_key":"job-gpux1-e5e6bf4fc8f0","remarks":["best now: n0 in ib0, an idle node: none in use has room for it","not tied to n0: no reconciler here would release it to other nodes"]}','[]','{"shape":{"gpus":1,"gpu_unit":"gpus","cpu_unit":"none","mem_mib":1000,"mem_unit":"mem","time_limit_s":300},"own":{"mem":"1000"},"tune":true,"place":true}','',0,0);
CREATE TABLE preruns (
    cluster TEXT NOT NULL,
    prerun_job_id INTEGER NOT NULL,
    at REAL NOT NULL,
    job_id INTEGER,
    uid INTEGER NOT NULL,
    verdict_outcome TEXT NOT NULL,
    verdict_layer TEXT NOT NULL,
    verdict_reason TEXT NOT NULL,
    verdict_steps INTEGER NOT NULL,
    verdict_seconds REAL NOT NULL,
    verdict_category TEXT NOT NULL,
    verdict_findings TEXT NOT NULL,
    verdict_evidence TEXT NOT NULL,
    verdict_measurement TEXT,
    verdict_input_path TEXT NOT NULL,
    verdict_input_fault TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    profile_key TEXT NOT NULL,
    gpus INTEGER NOT NULL,
    plan TEXT NOT NULL,
    changes TEXT NOT NULL,
    released INTEGER NOT NULL,
    more TEXT NOT NULL DEFAULT '{}',
    slim INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (cluster, prerun_job_id, at)
) WITHOUT ROWID;
CREATE TABLE profiles (
    key TEXT PRIMARY KEY,
    cpus_per_gpu REAL,
    mem_mib_per_gpu INTEGER,
    steps_per_s REAL,
    gpu_type TEXT NOT NULL,
    gpus_per_node INTEGER NOT NULL,
    runs INTEGER NOT NULL,
    preruns INTEGER NOT NULL,
    confidence REAL NOT NULL,
    source TEXT NOT NULL,
    measured_at REAL NOT NULL,
    more TEXT NOT NULL DEFAULT '{}'
) WITHOUT ROWID;
INSERT INTO profiles VALUES('1025:job-gpux1-e5e6bf4fc8f0',0.010000000000000000208,2,NULL,'a100',1,0,0,0.0,'epilog',1795795853.0,'{"cpus_busy":0.01}');
CREATE TABLE measurements (
    key TEXT NOT NULL,
    at REAL NOT NULL,
    source TEXT NOT NULL,
    measurement TEXT NOT NULL,
    PRIMARY KEY (key, at, source, measurement)
) WITHOUT ROWID;
INSERT INTO measurements VALUES('1025:job-gpux1-e5e6bf4fc8f0',1795795852.0,'epilog','{"seconds":1.0,"steps":null,"steps_per_s":null,"steps_until_s":null,"cpu_s":null,"cpus_used":null,"cpus_allocated":1,"mem_peak_mib":1,"mem_source":"cgroup","gpus":1,"gpu_mem_peak_mib":null,"cpu_curve":[],"cpu_curve_end":"","loader_workers":null,"read_mib_per_s":null,"model_mib":null,"largest_tensor_mib":null,"gpu_util":null,"gpu_mem_util":null,"gpus_unused":null,"gpu_power_w":null,"pcie_mib_per_s":null,"sensitivity":{}}');
INSERT INTO measurements VALUES('1025:job-gpux1-e5e6bf4fc8f0',1795795853.0,'epilog','{"seconds":1.0,"steps":null,"steps_per_s":null,"steps_until_s":null,"cpu_s":0.01,"cpus_used":0.01,"cpus_allocated":1,"mem_peak_mib":2,"mem_source":"cgroup","gpus":1,"gpu_mem_peak_mib":null,"cpu_curve":[],"cpu_curve_end":"","loader_workers":null,"read_mib_per_s":null,"model_mib":null,"largest_tensor_mib":null,"gpu_util":null,"gpu_mem_util":null,"gpus_unused":null,"gpu_power_w":null,"pcie_mib_per_s":null,"sensitivity":{}}');
CREATE TABLE delays (
    cluster TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    submit_time INTEGER NOT NULL,
    address TEXT NOT NULL,
    user TEXT NOT NULL,
    gpus INTEGER NOT NULL,
    eligible_at REAL NOT NULL,
    seen_at REAL NOT NULL,
    fair_share_s REAL NOT NULL,
    fragmentation_s REAL NOT NULL,
    unknown_s REAL NOT NULL,
    waits_for TEXT NOT NULL,
    over INTEGER NOT NULL,
    more TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (cluster, job_id, submit_time)
) WITHOUT ROWID;
CREATE TABLE ledger_resets (
    cluster TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    at REAL NOT NULL,
    who TEXT NOT NULL,
    note TEXT NOT NULL,
    more TEXT NOT NULL DEFAULT '{}',
    PRIMARY KEY (cluster, job_id, at)
) WITHOUT ROWID;
CREATE TABLE totals (
    metric TEXT NOT NULL,
    a TEXT NOT NULL,
    b TEXT NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (metric, a, b)
) WITHOUT ROWID;
INSERT INTO totals VALUES('attempts','invalid_memory_access','stop',2.0);
INSERT INTO totals VALUES('attempts','success','none',3.0);
INSERT INTO totals VALUES('gpu_seconds','invalid_memory_access','',2.0);
INSERT INTO totals VALUES('gpu_seconds','success','',15.0);
INSERT INTO totals VALUES('observations','epilog','',7.0);
INSERT INTO totals VALUES('observations','epilog_slurmctld','',5.0);
INSERT INTO totals VALUES('observations','prolog','',7.0);
INSERT INTO totals VALUES('observations','submit','',3.0);
CREATE TABLE pruned (
    what TEXT PRIMARY KEY,
    before REAL NOT NULL,
    at REAL NOT NULL,
    rows INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE migrations (
    version INTEGER PRIMARY KEY,
    at REAL NOT NULL
);
INSERT INTO migrations VALUES(1,1795795866.309079647);
CREATE INDEX observations_by_job ON observations (cluster, job_id, at);
CREATE INDEX observations_by_time ON observations (at);
CREATE INDEX attempts_by_end ON attempts (end_time);
CREATE INDEX attempts_to_do ON attempts (submit_time) WHERE reconciled = 0;
CREATE INDEX attempts_by_incident ON attempts (incident) WHERE incident <> '';
CREATE INDEX attempts_node_failures ON attempts (end_time) WHERE diagnosis_category = 'node_failure';
CREATE INDEX attempts_blamed_inputs ON attempts (end_time, diagnosis_input_path)
    WHERE diagnosis_input_path <> '';
CREATE INDEX attempts_of_arrays ON attempts (address) WHERE address <> CAST(job_id AS TEXT);
CREATE INDEX attempts_exposure ON attempts (end_time, start_time, nodes) WHERE slim = 0;
CREATE INDEX actions_to_do ON actions (action_id) WHERE done_at IS NULL;
CREATE INDEX actions_by_time ON actions (intended_at);
CREATE INDEX actions_of_attempt ON actions (cluster, job_id, submit_time);
CREATE INDEX incidents_by_end ON incidents (over_at);
CREATE INDEX strikes_by_time ON strikes (at);
CREATE INDEX strikes_by_attempt ON strikes (cluster, job_id, submit_time);
CREATE INDEX gpu_faults_by_time ON gpu_faults (at);
CREATE INDEX removals_open ON removals (node) WHERE ended IS NULL;
CREATE INDEX submissions_by_time ON submissions (at);
CREATE INDEX submissions_by_script ON submissions (script_sha256, fingerprint);
CREATE INDEX submissions_in_lot ON submissions (at) WHERE lot <> '';
CREATE INDEX submissions_by_prerun ON submissions (prerun_job_id) WHERE prerun_job_id IS NOT NULL;
CREATE INDEX submissions_detailed ON submissions (at) WHERE slim = 0;
CREATE INDEX preruns_by_job ON preruns (job_id);
CREATE INDEX preruns_by_fingerprint ON preruns (fingerprint);
CREATE INDEX preruns_by_time ON preruns (at, verdict_outcome, verdict_seconds, uid, job_id);
CREATE INDEX preruns_detailed ON preruns (at) WHERE slim = 0;
CREATE INDEX preruns_failed ON preruns (at) WHERE verdict_outcome = 'fail';
CREATE INDEX delays_open ON delays (cluster) WHERE over = 0;
CREATE INDEX delays_by_time ON delays (seen_at);
CREATE INDEX delays_detailed ON delays (seen_at) WHERE over = 1 AND address <> '';
CREATE VIEW failures AS
    SELECT
        datetime(end_time, 'unixepoch') AS ended_utc,
        cluster,
        address,
        user,
        name,
        state,
        diagnosis_category AS category,
        round(gpus * (end_time - start_time) / 3600.0, 2) AS gpu_hours,
        decision,
        decision_reason,
        diagnosis_advice AS advice
    FROM attempts
    WHERE diagnosis_category IS NOT NULL AND diagnosis_category NOT IN ('success', 'cancelled')
    ORDER BY end_time DESC
;
CREATE TRIGGER runs_delete AFTER DELETE ON attempts WHEN old.end_time IS NOT NULL BEGIN
    DELETE FROM runs WHERE end_time = old.end_time AND job_id = old.job_id
    AND submit_time = old.submit_time AND cluster = (SELECT id FROM names WHERE name = old.cluster);
END;
CREATE TRIGGER runs_of_preruns AFTER INSERT ON preruns BEGIN
    UPDATE runs SET aside = 1 WHERE (end_time, job_id, submit_time, cluster) IN (
        SELECT a.end_time, a.job_id, a.submit_time, n.id FROM attempts a JOIN names n ON n.name = a.cluster
        WHERE a.cluster = new.cluster AND a.job_id = new.prerun_job_id AND a.end_time IS NOT NULL);
END;
CREATE TRIGGER runs_of_stopped_jobs AFTER INSERT ON preruns
WHEN new.verdict_outcome = 'fail' AND new.job_id IS NOT NULL BEGIN
    UPDATE runs SET aside = 2 WHERE (end_time, job_id, submit_time, cluster) IN (
        SELECT a.end_time, a.job_id, a.submit_time, n.id FROM attempts a JOIN names n ON n.name = a.cluster
        WHERE a.cluster = new.cluster AND a.job_id = new.job_id AND a.end_time IS NOT NULL AND a.nodes = '[]');
END;
CREATE TRIGGER runs_of_submitted_preruns AFTER INSERT ON submissions WHEN new.prerun_job_id IS NOT NULL
BEGIN
    UPDATE runs SET aside = 1 WHERE (end_time, job_id, submit_time, cluster) IN (
        SELECT a.end_time, a.job_id, a.submit_time, n.id FROM attempts a JOIN names n ON n.name = a.cluster
        WHERE a.cluster = new.cluster AND a.job_id = new.prerun_job_id AND a.end_time IS NOT NULL);
END;
CREATE TRIGGER runs_of_late_preruns AFTER UPDATE OF prerun_job_id ON submissions
WHEN new.prerun_job_id IS NOT NULL BEGIN
    UPDATE runs SET aside = 1 WHERE (end_time, job_id, submit_time, cluster) IN (
        SELECT a.end_time, a.job_id, a.submit_time, n.id FROM attempts a JOIN names n ON n.name = a.cluster
        WHERE a.cluster = new.cluster AND a.job_id = new.prerun_job_id AND a.end_time IS NOT NULL);
END;
CREATE TRIGGER totals_run AFTER INSERT ON attempts WHEN new.diagnosis_category IS NOT NULL BEGIN
    INSERT INTO totals SELECT 'attempts', new.diagnosis_category, new.decision, 1 WHERE new.diagnosis_category IS NOT NULL
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
    INSERT INTO totals SELECT 'gpu_seconds', new.diagnosis_category, '', new.gpus * max(0, coalesce(new.end_time - new.start_time, 0))
    WHERE new.diagnosis_category IS NOT NULL
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
    INSERT INTO totals SELECT 'reruns', CASE new.diagnosis_category WHEN 'success' THEN 'completed' WHEN 'cancelled' THEN 'cancelled'
    ELSE 'failed' END, '', 1 WHERE new.diagnosis_category IS NOT NULL AND new.restarts > 0
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
END;
CREATE TRIGGER totals_judged AFTER UPDATE OF diagnosis_category ON attempts
WHEN old.diagnosis_category IS NULL AND new.diagnosis_category IS NOT NULL BEGIN
    INSERT INTO totals SELECT 'attempts', new.diagnosis_category, new.decision, 1 WHERE new.diagnosis_category IS NOT NULL
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
    INSERT INTO totals SELECT 'gpu_seconds', new.diagnosis_category, '', new.gpus * max(0, coalesce(new.end_time - new.start_time, 0))
    WHERE new.diagnosis_category IS NOT NULL
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
    INSERT INTO totals SELECT 'reruns', CASE new.diagnosis_category WHEN 'success' THEN 'completed' WHEN 'cancelled' THEN 'cancelled'
    ELSE 'failed' END, '', 1 WHERE new.diagnosis_category IS NOT NULL AND new.restarts > 0
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
END;
CREATE TRIGGER totals_prerun AFTER INSERT ON preruns BEGIN
    INSERT INTO totals SELECT 'preruns', new.verdict_outcome, '', 1 WHERE true
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
    INSERT INTO totals SELECT 'prerun_gpu_seconds', '', '', new.verdict_seconds WHERE true
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
    INSERT INTO totals SELECT 'prerun_stopped_gpus', '', '', new.gpus WHERE new.verdict_outcome = 'fail' AND new.job_id IS NOT NULL
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
END;
CREATE TRIGGER totals_intended AFTER INSERT ON actions BEGIN
    INSERT INTO totals SELECT 'actions_intended', new.rule, new.mode, 1 WHERE true
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
    INSERT INTO totals SELECT 'actions_done', new.rule, CASE new.error WHEN '' THEN 'done' ELSE 'refused' END, 1
    WHERE new.done_at IS NOT NULL
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
END;
CREATE TRIGGER totals_done AFTER UPDATE OF done_at ON actions WHEN old.done_at IS NULL AND new.done_at IS NOT NULL BEGIN
    INSERT INTO totals SELECT 'actions_done', new.rule, CASE new.error WHEN '' THEN 'done' ELSE 'refused' END, 1
    WHERE new.done_at IS NOT NULL
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
END;
CREATE TRIGGER totals_observed AFTER INSERT ON observations BEGIN
    INSERT INTO totals SELECT 'observations', new.context, '', 1 WHERE true
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
END;
CREATE TRIGGER totals_refused AFTER INSERT ON set_aside BEGIN
    INSERT INTO totals SELECT 'observations_refused', '', '', new.count WHERE true
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
END;
CREATE TRIGGER totals_refused_again AFTER UPDATE OF count ON set_aside WHEN new.count > old.count BEGIN
    INSERT INTO totals SELECT 'observations_refused', '', '', new.count - old.count WHERE true
    ON CONFLICT (metric, a, b) DO UPDATE SET value = value + excluded.value;
END;
CREATE TRIGGER runs_insert AFTER INSERT ON attempts WHEN new.end_time IS NOT NULL BEGIN
    INSERT INTO names (name) SELECT new.cluster WHERE new.cluster IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM names WHERE name = new.cluster);
    INSERT INTO names (name) SELECT new.user WHERE new.user IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM names WHERE name = new.user);
    INSERT INTO names (name) SELECT new.account WHERE new.account IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM names WHERE name = new.account);
    INSERT INTO names (name) SELECT new.diagnosis_category WHERE new.diagnosis_category IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM names WHERE name = new.diagnosis_category);
    INSERT INTO job_names (name) SELECT new.name WHERE new.name IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM job_names WHERE name = new.name);
    INSERT INTO runs SELECT new.end_time, new.job_id, new.submit_time, (SELECT id FROM names WHERE name = new.cluster),
    CASE WHEN new.start_time IS NULL THEN 0 ELSE max(0, new.end_time - new.start_time) END,
    new.gpus, json_array_length(new.nodes),
    (SELECT id FROM names WHERE name = new.user),
    (SELECT id FROM names WHERE name = new.account),
    (SELECT id FROM job_names WHERE name = new.name),
    (SELECT id FROM names WHERE name = new.diagnosis_category),
    CASE WHEN new.diagnosis_category IS NULL THEN 0 WHEN new.diagnosis_category = 'success' THEN 1
        WHEN new.diagnosis_category = 'cancelled' THEN 3
        WHEN new.diagnosis_category = 'completed_with_error' THEN 4 ELSE 2 END,
    CASE WHEN EXISTS (SELECT 1 FROM preruns p WHERE p.cluster = new.cluster AND p.prerun_job_id = new.job_id)
        OR EXISTS (SELECT 1 FROM submissions s WHERE s.prerun_job_id = new.job_id AND s.cluster = new.cluster) THEN 1
        WHEN new.nodes = '[]' AND EXISTS (SELECT 1 FROM preruns p WHERE p.job_id = new.job_id AND p.cluster = new.cluster
        AND p.verdict_outcome = 'fail') THEN 2 ELSE 0 END,
    new.restarts > 0, nullif(new.incident, ''),
    CAST(round(1000 * json_extract(new.measurement, '$.gpu_util')) AS INTEGER),
    json_extract(new.measurement, '$.gpus_unused')
    WHERE new.end_time IS NOT NULL
    ON CONFLICT (end_time, job_id, submit_time, cluster) DO UPDATE SET
        run_s = excluded.run_s,
        gpus = excluded.gpus,
        nodes = excluded.nodes,
        user = excluded.user,
        account = excluded.account,
        name = excluded.name,
        category = excluded.category,
        outcome = excluded.outcome,
        aside = excluded.aside,
        again = excluded.again,
        incident = excluded.incident,
        gpu_permille = coalesce(excluded.gpu_permille, gpu_permille),
        gpus_unused = coalesce(excluded.gpus_unused, gpus_unused);
END;
CREATE TRIGGER runs_update AFTER UPDATE OF end_time, start_time, gpus, nodes, user, account, name, restarts, measurement,
    diagnosis_category, incident ON attempts WHEN new.end_time IS NOT NULL OR old.end_time IS NOT NULL BEGIN
    DELETE FROM runs WHERE end_time = old.end_time AND job_id = old.job_id
    AND submit_time = old.submit_time AND cluster = (SELECT id FROM names WHERE name = old.cluster) AND old.end_time IS NOT new.end_time;
    INSERT INTO names (name) SELECT new.cluster WHERE new.cluster IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM names WHERE name = new.cluster);
    INSERT INTO names (name) SELECT new.user WHERE new.user IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM names WHERE name = new.user);
    INSERT INTO names (name) SELECT new.account WHERE new.account IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM names WHERE name = new.account);
    INSERT INTO names (name) SELECT new.diagnosis_category WHERE new.diagnosis_category IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM names WHERE name = new.diagnosis_category);
    INSERT INTO job_names (name) SELECT new.name WHERE new.name IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM job_names WHERE name = new.name);
    INSERT INTO runs SELECT new.end_time, new.job_id, new.submit_time, (SELECT id FROM names WHERE name = new.cluster),
    CASE WHEN new.start_time IS NULL THEN 0 ELSE max(0, new.end_time - new.start_time) END,
    new.gpus, json_array_length(new.nodes),
    (SELECT id FROM names WHERE name = new.user),
    (SELECT id FROM names WHERE name = new.account),
    (SELECT id FROM job_names WHERE name = new.name),
    (SELECT id FROM names WHERE name = new.diagnosis_category),
    CASE WHEN new.diagnosis_category IS NULL THEN 0 WHEN new.diagnosis_category = 'success' THEN 1
        WHEN new.diagnosis_category = 'cancelled' THEN 3
        WHEN new.diagnosis_category = 'completed_with_error' THEN 4 ELSE 2 END,
    CASE WHEN EXISTS (SELECT 1 FROM preruns p WHERE p.cluster = new.cluster AND p.prerun_job_id = new.job_id)
        OR EXISTS (SELECT 1 FROM submissions s WHERE s.prerun_job_id = new.job_id AND s.cluster = new.cluster) THEN 1
        WHEN new.nodes = '[]' AND EXISTS (SELECT 1 FROM preruns p WHERE p.job_id = new.job_id AND p.cluster = new.cluster
        AND p.verdict_outcome = 'fail') THEN 2 ELSE 0 END,
    new.restarts > 0, nullif(new.incident, ''),
    CAST(round(1000 * json_extract(new.measurement, '$.gpu_util')) AS INTEGER),
    json_extract(new.measurement, '$.gpus_unused')
    WHERE new.end_time IS NOT NULL
    ON CONFLICT (end_time, job_id, submit_time, cluster) DO UPDATE SET
        run_s = excluded.run_s,
        gpus = excluded.gpus,
        nodes = excluded.nodes,
        user = excluded.user,
        account = excluded.account,
        name = excluded.name,
        category = excluded.category,
        outcome = excluded.outcome,
        aside = excluded.aside,
        again = excluded.again,
        incident = excluded.incident,
        gpu_permille = coalesce(excluded.gpu_permille, gpu_permille),
        gpus_unused = coalesce(excluded.gpus_unused, gpus_unused);
END;
COMMIT;
