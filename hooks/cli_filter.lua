-- slurmwrap: prints a hint about gsub to stderr, once per submission, when a user submits a GPU job with plain sbatch.
-- It never changes or refuses a submission and asks no question. It prints nothing for gsub's own calls, for scripts
-- without a terminal, and when SLURMWRAP_HINT=off is set.

local HINT = "this GPU job starts without a trial: `gsub` takes the same options, catches bugs on one GPU first and "
    .. "retries what is not your fault (SLURMWRAP_HINT=off silences this)"
local GPU_OPTIONS = { "gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket" }

local function read(path)
    local file = io.open(path, "r")
    if not file then
        return ""
    end
    local text = file:read(4096) or ""
    file:close()
    return text
end

-- gsub starts sbatch itself. It is then the parent process: Python that runs the file of gsub, or of gsub installed
-- under the name sbatch.
local function called_by_gsub()
    local parent = read("/proc/self/stat"):match("^%d+ %(.*%) %a (%d+)")
    local line = parent and read("/proc/" .. parent .. "/cmdline") or ""
    return line:find("gsub", 1, true) or line:find("slurmwrap", 1, true) or line:find("python[^%z]*%z.*sbatch")
end

local function on_a_terminal()
    local terminal = io.open("/dev/tty", "r")
    if not terminal then
        return false
    end
    terminal:close()
    return true
end

local function wants_gpus(options)
    for _, name in ipairs(GPU_OPTIONS) do
        local value = options[name]
        if value ~= nil and tostring(value) ~= "" and tostring(value):lower():find(name == "gres" and "gpu" or "%d") then
            return true
        end
    end
    return false
end

local function hint(options)
    if options["type"] ~= "sbatch" or os.getenv("SLURMWRAP_HINT") == "off" or not wants_gpus(options) then
        return
    end
    if on_a_terminal() and not called_by_gsub() then
        slurm.log_info("%s", HINT)
    end
end

function slurm_cli_setup_defaults(options, early_pass)
    return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
    pcall(hint, options) -- an error in slurmwrap must not affect the submission
    return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
    return slurm.SUCCESS
end
